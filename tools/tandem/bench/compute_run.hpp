// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/compute_report.hpp"
#include "tandem/bench/ranks.hpp"
#include "tandem/communicator.hpp"

namespace tandem::cli {

/// Names of what a run uses, for its report.
struct ComputeFacts {
  std::string kernels, timing;
};

/// Runs all that the job asks for; `begin` is called once before, `each` with every row as soon as it is there.
/// Collective: `ranks` are those of `comm`. Rows are the same on all ranks. `threads`: of kernels on the host, 0 for
/// their default.
void run_compute(const ComputeJob& job, Communicator& comm, BenchRanks& ranks, int threads,
                 const std::function<void(const ComputeFacts&)>& begin,
                 const std::function<void(const ComputeRow&)>& each);

}  // namespace tandem::cli

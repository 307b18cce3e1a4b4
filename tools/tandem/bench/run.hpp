// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tandem/bench/contender.hpp"
#include "tandem/bench/data.hpp"
#include "tandem/bench/figures.hpp"
#include "tandem/bench/options.hpp"
#include "tandem/bench/timer.hpp"
#include "tandem/communicator.hpp"

namespace tandem::cli {

/// Times all contenders of one size by turns, iteration by iteration, and checks what they leave. Collective. Rows in
/// the contenders' order; without `beside`.
std::vector<BenchRow> measure_contenders(const BenchJob& job, std::span<const std::unique_ptr<Contender>> contenders,
                                         BenchTimer& timer, BenchData& data, BenchRanks& ranks);

/// What a run knows beside its rows.
struct BenchFacts {
  std::string timing;        ///< how times are taken
  std::string nccl_version;  ///< or ""
};

/// Runs all sizes; `begin` is called once before, `each` with the rows of a size as soon as they are there. Collective:
/// `ranks` are those of `comm`. The slowest rank's times, and wrong values of all ranks, are the same on all of them.
void run_bench(const BenchJob& job, Communicator& comm, BenchRanks& ranks,
               const std::function<void(const BenchFacts&)>& begin,
               const std::function<void(const std::vector<BenchRow>&)>& each);

}  // namespace tandem::cli

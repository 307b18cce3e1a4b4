// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench_options.hpp"
#include "tandem/communicator.hpp"

namespace tandem::cli {

/// One size, as one rank saw it.
struct BenchRow {
  std::uint64_t size = 0;      ///< bytes of all ranks together, as many whole rows as fit
  std::uint64_t per_rank = 0;  ///< of it, what each rank has
  std::uint64_t received = 0;  ///< that came from other ranks
  double median_us = 0, p95_us = 0;
  double cv = 0;  ///< standard deviation over mean
  std::uint64_t wrong = 0;
  bool checked = false;

  double algorithm_rate() const { return median_us > 0 ? static_cast<double>(size) / median_us / 1e3 : 0; }
  /// GB/s that came in over the links.
  double bus_rate() const { return median_us > 0 ? static_cast<double>(received) / median_us / 1e3 : 0; }
};

/// Runs all sizes; `each` is called with every row as soon as it is there.
void run_bench(const BenchJob& job, Communicator& comm, const std::function<void(const BenchRow&)>& each);

}  // namespace tandem::cli

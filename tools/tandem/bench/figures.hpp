// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::cli {

/// Of a number of samples.
struct Summary {
  std::size_t count = 0;
  double median = 0;
  double p95 = 0;  ///< the smallest sample that at least 95 % are not larger than
  double cv = 0;   ///< standard deviation over mean
};

/// All 0 without samples. The median of an even number is the mean of the two in the middle.
Summary summarize(std::vector<double> samples);

/// What an operation moves.
struct Volume {
  std::uint64_t size = 0;      ///< bytes of all ranks together, as nccl-tests counts them
  std::uint64_t per_rank = 0;  ///< of it, what each rank has
  std::uint64_t received = 0;  ///< bytes that this rank gets from the others
};

/// A GEMM sequence beside one contender.
struct BesideFigures {
  int repeats = 1;            ///< operations in a row that span the sequence
  double alone_us = 0;        ///< of one operation, of `repeats` without the sequence beside them
  double beside_us = 0;       ///< of one operation, beside the sequence
  double gemm_alone_us = 0;   ///< the sequence
  double gemm_beside_us = 0;  ///< the sequence, beside operations
  double chunked_us = 0;  ///< the sequence where each GEMM takes (gather) or gives (reduce) its part of one operation
  double stalls_us = 0;   ///< of it, waits on the stream of the GEMMs
  /// Percent that the sequence takes longer beside operations.
  double slow_down() const;
};

/// One contender at one size. Times are those of the slowest rank, iteration by iteration.
struct BenchRow {
  std::string contender;
  Volume volume;
  Summary us;
  std::optional<double> back_to_back_us;  ///< iterations in a row, time of one
  std::uint64_t wrong = 0;                ///< on all ranks together
  bool checked = false;
  std::uint64_t late = 0;  ///< measurements in which a GPU had to wait for its host
  std::optional<BesideFigures> beside;

  double algorithm_rate() const;  ///< GB/s of `size`
  double bus_rate() const;        ///< GB/s that came in over the links
};

/// GB/s; 0 if the time is.
double gigabytes_per_second(std::uint64_t bytes, double us);

}  // namespace tandem::cli

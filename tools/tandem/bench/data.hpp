// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "tandem/device.hpp"

namespace tandem::cli {

/// Writes and checks what pattern.hpp says, in the memory of a device, on a stream of it. Calls enqueue; memory has to
/// live until they have run. One thread at a time.
class BenchData {
 public:
  virtual ~BenchData() = default;

  /// `bytes` bytes of the random bits from byte `first` on, a multiple of 8.
  virtual void fill(const Stream& stream, void* to, std::uint64_t bytes, std::uint64_t first, std::uint64_t salt) = 0;
  /// `count` fp32 terms of `rank` from element `first` on.
  virtual void fill_terms(const Stream& stream, float* to, std::uint64_t count, std::uint64_t first, int rank,
                          std::uint64_t salt) = 0;
  /// What no pattern has: all bits set.
  virtual void poison(const Stream& stream, void* to, std::uint64_t bytes) = 0;

  /// Counts the bytes that differ from fill()'s.
  virtual void check(const Stream& stream, const void* found, std::uint64_t bytes, std::uint64_t first,
                     std::uint64_t salt) = 0;
  /// Counts the elements that differ from the sum over ranks [first_rank, ranks).
  virtual void check_sums(const Stream& stream, const float* found, std::uint64_t count, std::uint64_t first,
                          int first_rank, int ranks, std::uint64_t salt) = 0;
  /// Blocks until what was given to `stream` has run; returns what the checks have counted since the last call.
  virtual std::uint64_t take_wrong(const Stream& stream, Deadline deadline) = 0;
};

std::unique_ptr<BenchData> make_data(const Device& device);

}  // namespace tandem::cli

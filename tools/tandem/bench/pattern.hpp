// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TANDEM_BENCH_BOTH __host__ __device__
#else
#define TANDEM_BENCH_BOTH
#endif

/// What the memory of a benchmark holds: numbers that follow from their place and a salt, so that every rank knows what
/// every other one sends. The same on the host and on a GPU.
namespace tandem::cli::pattern {

TANDEM_BENCH_BOTH constexpr std::uint64_t mix(std::uint64_t v) {
  // The output function of SplitMix64 (Steele, Lea, Flood 2014).
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ULL;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
  return v ^ (v >> 31);
}

/// Random bits: bytes [8 index, 8 index + 8) of what moves unchanged.
TANDEM_BENCH_BOTH constexpr std::uint64_t bits(std::uint64_t salt, std::uint64_t index) {
  return mix(mix(salt) + index * 0x9E3779B97F4A7C15ULL);
}

TANDEM_BENCH_BOTH constexpr std::uint8_t byte(std::uint64_t salt, std::uint64_t index) {
  return static_cast<std::uint8_t>(bits(salt, index / 8) >> (index % 8 * 8));
}

/// What `rank` adds to element `index`: a whole number, so that sums over up to 1024 ranks are exact in any order.
TANDEM_BENCH_BOTH constexpr float term(std::uint64_t salt, int rank, std::uint64_t index) {
  const std::uint64_t key = salt + static_cast<std::uint64_t>(rank + 1) * 0xD1B54A32D192ED03ULL;
  return static_cast<float>(static_cast<int>(bits(key, index) % 127) - 63);
}

/// The sum of the terms of ranks [first, end).
TANDEM_BENCH_BOTH constexpr float sum(std::uint64_t salt, int first, int end, std::uint64_t index) {
  float total = 0;
  for (int rank = first; rank < end; ++rank) total += term(salt, rank, index);
  return total;
}

}  // namespace tandem::cli::pattern

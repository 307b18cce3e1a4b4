// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/generic/block.cuh"

/// The K best of a row's scores, chosen by a block as they come by. The order is that of the cpu's rank_key.
namespace tandem::detail::cuda::generic {

/// A score and its landed row as one number: greater means earlier in the total order (score descending, row
/// ascending). 0 stands for nothing. The score must not be NaN.
__device__ inline std::uint64_t rank_key(float score, int landed_row) {
  const unsigned bits = __float_as_uint(__fadd_rn(score, 0.0F));  // -0 becomes +0
  const unsigned ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32) | ~static_cast<unsigned>(landed_row);
}
__device__ inline float rank_key_score(std::uint64_t key) {
  const auto ordered = static_cast<unsigned>(key >> 32);
  return __uint_as_float((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}
__device__ inline int rank_key_row(std::uint64_t key) { return static_cast<int>(~static_cast<unsigned>(key)); }

/// What a selector has in shared memory beside its candidates.
struct SelectorMemory {
  int count;
  int digit, above;
  int bins[256];
  int warp_counts[block_warps];
};
static_assert(block_threads == 256, "a thread for each bin");

/// Keeps candidates in `data` and cuts them to K when there is no room for another block of them. All members have to
/// be called by every thread of the block.
class TopkSelector {
 public:
  __device__ TopkSelector(std::uint64_t* data, int capacity, int k, SelectorMemory& memory)
      : data_(data), capacity_(capacity), k_(k), memory_(memory) {
    if (threadIdx.x == 0) memory_.count = 0;
    __syncthreads();
  }

  /// One candidate of each thread; 0 offers nothing. In any order.
  __device__ void offer(std::uint64_t key) {
    const bool take = key > threshold_;
    const unsigned takers = __ballot_sync(all_lanes, take);
    int at = 0;
    if (lane() == 0 && takers != 0) at = atomicAdd(&memory_.count, __popc(takers));
    at = __shfl_sync(all_lanes, at, 0) + __popc(takers & ((1U << lane()) - 1));
    if (take) data_[at] = key;
    __syncthreads();
    count_ = memory_.count;
    __syncthreads();
    if (count_ > capacity_ - block_threads) cut();
  }

  /// The best min(K, offered) are data[0, count()), in no particular order.
  __device__ void finish() {
    if (count_ > k_) cut();
  }
  __device__ int count() const { return count_; }

 private:
  __device__ void cut() {
    // The K-th greatest, digit by digit from the top.
    std::uint64_t prefix = 0;
    std::uint64_t mask = 0;
    int wanted = k_;  // of those that begin with the prefix
    for (int shift = 56; shift >= 0; shift -= 8) {
      memory_.bins[threadIdx.x] = 0;
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < count_; i += block_threads) {
        if ((data_[i] & mask) == prefix) atomicAdd(&memory_.bins[(data_[i] >> shift) & 255], 1);
      }
      __syncthreads();
      find_digit(wanted);
      __syncthreads();
      prefix |= static_cast<std::uint64_t>(memory_.digit) << shift;
      mask |= std::uint64_t{255} << shift;
      wanted -= memory_.above;
      const bool all = memory_.bins[memory_.digit] == wanted;
      __syncthreads();
      if (all) break;
    }
    compact(prefix);
    // What does not exceed the prefix is not among the best.
    threshold_ = prefix;
  }

  /// The digit at which the bins, from the last down, reach `wanted`; how many are in those above it.
  __device__ void find_digit(int wanted) {
    if (threadIdx.x >= 32) return;
    constexpr int own = 256 / 32;
    const int last = 255 - own * lane();  // lane 0 has the greatest digits
    int sum = 0;
    for (int i = 0; i < own; ++i) sum += memory_.bins[last - i];
    int before = sum;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(all_lanes, before, distance);
      if (lane() >= distance) before += other;
    }
    before -= sum;
    for (int i = 0; i < own; ++i) {
      const int bin = memory_.bins[last - i];
      if (before < wanted && wanted <= before + bin) {
        memory_.digit = last - i;
        memory_.above = before;
      }
      before += bin;
    }
  }

  /// Keeps what is not below `least`, in place and in order.
  __device__ void compact(std::uint64_t least) {
    int kept = 0;
    for (int first = 0; first < count_; first += block_threads) {
      const int i = first + static_cast<int>(threadIdx.x);
      const std::uint64_t key = i < count_ ? data_[i] : 0;
      const bool keep = i < count_ && key >= least;
      const unsigned keepers = __ballot_sync(all_lanes, keep);
      if (lane() == 0) memory_.warp_counts[warp()] = __popc(keepers);
      __syncthreads();
      int at = kept + __popc(keepers & ((1U << lane()) - 1));
      for (int w = 0; w < block_warps; ++w) {
        kept += memory_.warp_counts[w];
        if (w < warp()) at += memory_.warp_counts[w];
      }
      if (keep) data_[at] = key;
      __syncthreads();
    }
    if (threadIdx.x == 0) memory_.count = kept;
    count_ = kept;
    __syncthreads();
  }

  std::uint64_t* const data_;
  const int capacity_;
  const int k_;
  SelectorMemory& memory_;
  int count_ = 0;
  std::uint64_t threshold_ = 0;
};

}  // namespace tandem::detail::cuda::generic

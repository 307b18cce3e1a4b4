// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "topk.cuh"

/// What is made of a finished list. All functions are called by all select warps.
namespace tandem::detail::sm90 {

/// Writes the rows of list[0, n) ascending to out[0, width), -1 beyond them. All rows lie in [begin, end).
__device__ __forceinline__ void write_ascending(const std::uint64_t* list, int n, int begin, int end, std::int32_t* out,
                                                int width, SelectScratch& scratch, int thread) {
  constexpr int window = histogram_words * 32;
  int written = 0;
  for (int from = begin; from < end && written < n; from += window) {
    clear_histogram(scratch, thread);
    select_sync();
    for (int first = thread; first < n; first += 8 * select_threads) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = first + i * select_threads;
        const auto bit = static_cast<std::uint32_t>(at < n ? rank_key_row(list[at]) - from : -1);
        if (bit < static_cast<std::uint32_t>(window)) atomicOr(&scratch.histogram[bit / 32], 1U << (bit % 32));
      }
    }
    select_sync();
    std::uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < bins_per_thread / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(scratch.histogram)[thread * (bins_per_thread / 4) + i];
      mine += __popc(four.x) + __popc(four.y) + __popc(four.z) + __popc(four.w);
    }
    int at = written + static_cast<int>(select_prefix(mine, scratch, thread));
    for (int i = 0; i < bins_per_thread; ++i) {
      std::uint32_t word = scratch.histogram[thread * bins_per_thread + i];
      while (word != 0) {
        out[at++] = from + (thread * bins_per_thread + i) * 32 + __ffs(static_cast<int>(word)) - 1;
        word &= word - 1;
      }
    }
    for (int warp = 0; warp < select_warps; ++warp) written += static_cast<int>(scratch.warp_sum[warp]);
    select_sync();
  }
  for (int i = n + thread; i < width; i += select_threads) out[i] = -1;
}

/// ln(sum of exp(score)) over list[0, n); -infinity if it is empty. The sum is taken in fixed point relative to the
/// greatest score, so it does not depend on the order of the list.
__device__ __forceinline__ float log_sum_exp(const std::uint64_t* list, int n, SelectScratch& scratch, int thread) {
  if (thread == 0) {
    scratch.maximum = 0;
    scratch.sum = 0;
  }
  select_sync();
  std::uint32_t greatest = 0;
  for (int i = thread; i < n; i += select_threads) greatest = max(greatest, static_cast<std::uint32_t>(list[i] >> 32));
  greatest = __reduce_max_sync(full_warp, greatest);
  if ((thread & 31) == 0) atomicMax(&scratch.maximum, greatest);
  select_sync();
  const float top = rank_key_score(static_cast<std::uint64_t>(scratch.maximum) << 32);
  if (n == 0 || isinf(top)) {
    select_sync();
    return n == 0 ? -INFINITY : top;
  }
  unsigned long long sum = 0;
  for (int i = thread; i < n; i += select_threads) {
    sum += static_cast<unsigned long long>(expf(rank_key_score(list[i]) - top) * 1099511627776.0F);  // 2^40
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
  if ((thread & 31) == 0) atomicAdd(&scratch.sum, sum);
  select_sync();
  const auto total = static_cast<double>(scratch.sum);
  select_sync();
  return top + static_cast<float>(log(total * 0x1p-40));
}

}  // namespace tandem::detail::sm90

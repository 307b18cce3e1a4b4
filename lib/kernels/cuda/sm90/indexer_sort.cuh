// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_shared.cuh"

/// What follows the indexer kernel in a launch: lists in ascending order. The select warps could sort, but have no time
/// to: where rows are short, or many share a tile, they are what the kernel waits for.
namespace tandem::detail::sm90 {

constexpr int sort_threads = 256;
constexpr int sort_words = 4 * sort_threads;     ///< of a bitmap that all threads go through at once
constexpr int most_sort_words = 8 * sort_words;  ///< 262144 rows
constexpr int sort_shared_bytes_most = (most_sort_words + 8192) * 4;

/// Of the bitmap for so many landed rows.
__host__ __device__ constexpr int sort_words_for(std::int64_t keys) {
  const std::int64_t words = (keys + 32 * sort_words - 1) / (32 * sort_words) * sort_words;
  return words < most_sort_words ? static_cast<int>(words) : most_sort_words;
}

/// Sum of one value a thread over those before it; `warp_sum` gets the warps' sums. Between two calls threads must
/// synchronise.
__device__ __forceinline__ std::uint32_t prefix_of(std::uint32_t value, std::uint32_t* warp_sum) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t sum = value;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(full_warp, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sum[warp] = sum;
  __syncthreads();
  std::uint32_t before = 0;
  for (unsigned w = 0; w < warp; ++w) before += warp_sum[w];
  return before + sum - value;
}

/// Puts the rows of a scored list in ascending order, and -1 behind them. One block a row, `words` words of a bitmap,
/// and room for the list.
__global__ void __launch_bounds__(sort_threads) sort_lists_kernel(const __grid_constant__ IndexerParams p, int words) {
  extern __shared__ __align__(16) std::uint32_t bitmap[];
  __shared__ std::uint32_t warp_sum[sort_threads / 32];
  auto* const sorted = reinterpret_cast<std::int32_t*>(bitmap + words);
  const int row = local_row(p, static_cast<int>(blockIdx.x));
  const RowBounds bounds = bounds_of(p, row);
  if (takes_all(p, bounds)) return;
  const auto thread = static_cast<int>(threadIdx.x);
  const int n = p.length[row];
  std::int32_t* const list = p.indices + static_cast<std::int64_t>(row) * p.topk;
  int written = 0;
  for (int from = bounds.begin; from < bounds.end && written < n; from += 32 * words) {
    const int used = min(words, sort_words_for(bounds.end - from));
    for (int i = thread; i < used; i += sort_threads) bitmap[i] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += sort_threads) {
      const auto at = static_cast<std::uint32_t>(list[i] - from);
      if (at < 32U * static_cast<std::uint32_t>(used)) atomicOr(&bitmap[at / 32], 1U << at % 32);
    }
    __syncthreads();
    for (int part = 0; part < used; part += sort_words) {
      const int first = part + 4 * thread;
      const uint4 four = *reinterpret_cast<const uint4*>(bitmap + first);
      std::uint32_t own[4] = {four.x, four.y, four.z, four.w};
      const int mine = __popc(own[0]) + __popc(own[1]) + __popc(own[2]) + __popc(own[3]);
      std::int32_t* to = sorted + written + prefix_of(static_cast<std::uint32_t>(mine), warp_sum);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        for (; own[i] != 0; own[i] &= own[i] - 1) {
          *to++ = from + (first + i) * 32 + __ffs(static_cast<int>(own[i])) - 1;
        }
      }
      for (const std::uint32_t sum : warp_sum) written += static_cast<int>(sum);
      __syncthreads();
    }
  }
  for (int i = thread; i < p.topk; i += sort_threads) list[i] = i < written ? sorted[i] : -1;
}

}  // namespace tandem::detail::sm90

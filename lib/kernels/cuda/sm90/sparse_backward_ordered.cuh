// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparse_backward_shared.cuh"

/// The sparse backward's last pass if gradients are to be the same bit by bit: the terms that the keys pass wrote are
/// added to dkv, those of a key in the order of the rows. A warp has a key, a block neighbouring ones. Which rows chose
/// them, and where in their lists they are, its threads find by bisection, a row each: lists ascend, and are in L2.
namespace tandem::detail::sm90 {

constexpr int ordered_threads = 256, ordered_warps = ordered_threads / 32;
constexpr int ordered_rows = 512;  ///< looked through at a time

/// Of the first entry of an ascending list that is `key` or greater.
__device__ __forceinline__ int lower_bound(const std::int32_t* list, int length, std::int32_t key) {
  int from = 0, to = length;
  while (from < to) {
    const int middle = (from + to) / 2;
    if (list[middle] < key) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from;
}

/// Places in the lists of rows `first` and on of the block's keys, -1 where a row has not chosen one.
using Places = std::int16_t[ordered_warps][ordered_rows];

__device__ __forceinline__ void find_places(const SparseBackwardParams& p, std::int64_t first, std::int32_t first_key,
                                            Places& places) {
  for (int i = static_cast<int>(threadIdx.x); i < ordered_rows; i += ordered_threads) {
#pragma unroll
    for (int key = 0; key < ordered_warps; ++key) places[key][i] = -1;
    if (first + i >= p.rows) continue;
    const std::int64_t query = p.first_row + first + i;
    const std::int32_t* const list = p.indices + query * p.topk;
    const int length = row_length(p, query);
    for (int at = lower_bound(list, length, first_key); at < length; ++at) {
      const int key = list[at] - first_key;
      if (key >= ordered_warps) break;
      places[key][i] = static_cast<std::int16_t>(at);
    }
  }
}

template <int Slices>
__global__ void __launch_bounds__(ordered_threads)
    sparse_backward_ordered_kernel(const __grid_constant__ SparseBackwardParams p) {
  constexpr int columns = Slices * 64, vectors = columns / 4, mine = (vectors + 31) / 32;
  __shared__ Places places;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first_key = std::int64_t{blockIdx.x} * ordered_warps;
  float4 sum[mine];
#pragma unroll
  for (float4& four : sum) four = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  bool chosen = false;
  for (std::int64_t first = 0; first < p.rows; first += ordered_rows) {
    __syncthreads();  // the places before have been read
    find_places(p, first, static_cast<std::int32_t>(first_key), places);
    __syncthreads();
    for (int part = 0; part < ordered_rows; part += 32) {
      const int place = places[warp][part + lane];
      for (unsigned rows = __ballot_sync(whole_warp, place >= 0); rows != 0; rows &= rows - 1) {
        const int row = __ffs(static_cast<int>(rows)) - 1;
        const std::int64_t entry = (first + part + row) * p.topk + __shfl_sync(whole_warp, place, row);
        const auto* terms = reinterpret_cast<const float4*>(p.terms + entry * columns);
        chosen = true;
#pragma unroll
        for (int i = 0; i < mine; ++i) {
          if (i * 32 + lane >= vectors) continue;
          const float4 term = terms[i * 32 + lane];
          sum[i].x += term.x;
          sum[i].y += term.y;
          sum[i].z += term.z;
          sum[i].w += term.w;
        }
      }
    }
  }
  if (!chosen) return;
  auto* to = reinterpret_cast<float4*>(p.dkv + (first_key + warp) * p.dkv_row_stride);
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    if (i * 32 + lane >= vectors) continue;
    float4 four = to[i * 32 + lane];
    four.x += sum[i].x;
    four.y += sum[i].y;
    four.z += sum[i].z;
    four.w += sum[i].w;
    to[i * 32 + lane] = four;
  }
}

}  // namespace tandem::detail::sm90

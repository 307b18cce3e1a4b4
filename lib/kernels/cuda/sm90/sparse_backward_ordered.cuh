// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparse_backward_shared.cuh"

/// The sparse backward's last pass if gradients are to be the same bit by bit: the terms that the keys pass wrote are
/// added to dkv, those of a key in the order of the rows. A warp has a key. Which rows chose it, and where in their
/// list it is, it finds by bisection, a row a lane: lists ascend, and are in L2.
namespace tandem::detail::sm90 {

constexpr int ordered_threads = 256, ordered_warps = ordered_threads / 32;

/// Place of `key` in an ascending list, or -1.
__device__ __forceinline__ int place_of(const std::int32_t* list, int length, std::int32_t key) {
  int from = 0, to = length;
  while (from < to) {
    const int middle = (from + to) / 2;
    if (list[middle] < key) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from < length && list[from] == key ? from : -1;
}

template <int Slices>
__global__ void __launch_bounds__(ordered_threads)
    sparse_backward_ordered_kernel(const __grid_constant__ SparseBackwardParams p) {
  constexpr int columns = Slices * 64, vectors = columns / 4, mine = (vectors + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const std::int64_t key = std::int64_t{blockIdx.x} * ordered_warps + static_cast<int>(threadIdx.x) / 32;
  if (key >= p.keys) return;
  float4 sum[mine];
#pragma unroll
  for (float4& four : sum) four = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  bool chosen = false;
  for (std::int64_t first = 0; first < p.rows; first += 32) {
    const std::int64_t query = p.first_row + first + lane;
    const int length = first + lane < p.rows ? row_length(p, query) : 0;
    const int place = place_of(p.indices + query * p.topk, length, static_cast<std::int32_t>(key));
    for (unsigned rows = __ballot_sync(whole_warp, place >= 0); rows != 0; rows &= rows - 1) {
      const int row = __ffs(static_cast<int>(rows)) - 1;
      const std::int64_t entry = (first + row) * p.topk + __shfl_sync(whole_warp, place, row);
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
  if (!chosen) return;
  auto* to = reinterpret_cast<float4*>(p.dkv + key * p.dkv_row_stride);
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

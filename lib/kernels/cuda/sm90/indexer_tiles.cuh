// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_kernel.cuh"

/// What precedes the indexer kernel in a launch: rows that take all they see, and the query tiles of the rest.
namespace tandem::detail::sm90 {

/// Rows that see no more than K keys: list and length, or an empty state. One warp a row.
__global__ void take_all_kernel(const IndexerParams p) {
  const int slot = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x & 31U);
  if (slot >= p.row_count) return;
  const int row = local_row(p, slot);
  const RowBounds bounds = bounds_of(p, row);
  if (!takes_all(p, bounds)) return;
  if (p.index_lse != nullptr && p.last && bounds.end <= bounds.begin && lane == 0) p.index_lse[row] = -INFINITY;
  if (p.last) {
    const int count = bounds.end - bounds.begin;
    std::int32_t* list = p.indices + static_cast<std::int64_t>(row) * p.topk;
    for (int i = lane; i < p.topk; i += 32) list[i] = i < count ? bounds.begin + i : -1;
    if (lane == 0) p.length[row] = count;
  } else if (!needs_scores(p, bounds) && lane == 0) {
    p.state_length[slot] = 0;
  }
}

/// The query tiles that have rows to score, the longest first (by buckets of length), and the counters. One block.
template <int Rows>
__global__ void __launch_bounds__(1024) query_tiles_kernel(const IndexerParams p) {
  constexpr int buckets = 1024;
  __shared__ int start[buckets];
  __shared__ int warp_sum[32];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int tiles = (p.row_count + Rows - 1) / Rows;
  start[thread] = 0;
  __syncthreads();
  // Both passes work out the same tile; a tile without rows to score has no bucket.
  const auto tile_at = [&](int index, QueryTile& tile) {
    tile = {index * Rows, min(Rows, p.row_count - index * Rows), p.keys, 0};
    bool any = false;
    for (int i = 0; i < tile.slots; ++i) {
      const int row = local_row(p, tile.first_slot + i);
      const RowBounds bounds = bounds_of(p, row);
      if (!needs_scores(p, bounds)) continue;
      any = true;
      tile.begin = min(tile.begin, bounds.begin);
      tile.end = max(tile.end, bounds.end);
    }
    if (!any) return -1;
    const std::int64_t length = count_key_tiles(p, tile.begin, tile.end);
    const std::int64_t most = (p.keys + tile_keys - 1) / tile_keys + p.key_range_count;
    return static_cast<int>(buckets - 1 - min(length * (buckets - 1) / most, static_cast<std::int64_t>(buckets - 1)));
  };
  for (int index = thread; index < tiles; index += 1024) {
    QueryTile tile;
    const int bucket = tile_at(index, tile);
    if (bucket >= 0) atomicAdd(&start[bucket], 1);
  }
  __syncthreads();
  const int mine = start[thread];
  int sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(full_warp, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sum[thread / 32] = sum;
  __syncthreads();
  int before = 0;
  for (int warp = 0; warp < thread / 32; ++warp) before += warp_sum[warp];
  start[thread] = before + sum - mine;
  if (thread == 1023) {
    p.counters[0] = 0;
    p.counters[1] = before + sum;
  }
  __syncthreads();
  for (int index = thread; index < tiles; index += 1024) {
    QueryTile tile;
    const int bucket = tile_at(index, tile);
    if (bucket >= 0) p.tiles[atomicAdd(&start[bucket], 1)] = tile;
  }
}

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "indexer_launch.hpp"
#include "topk.cuh"

/// One persistent kernel. A block of threads takes a query tile (256 / Hi rows, so that one matrix instruction is as
/// wide as it can be), walks the keys that its rows see in tiles of 64, and keeps each row's best K.
///
/// Warpgroups: two of matrix warps, which take key tiles in turn so that one's head sums hide under the other's matrix
/// work; one of three warps that select and one that fetches. Matrix warps write what passes a row's threshold to
/// segments in global memory, one for each (block of key tiles, row, warp), as large as all its keys, so nothing can
/// overflow. The select warps append segments to the row's list and count its scores in bins, by which they raise the
/// threshold after every block; a list is cut only when it is full. A tile's rows are finished while the next tile's
/// blocks come. Thresholds that matrix warps read may be old; an old one only lets more pass.
namespace tandem::detail::sm90 {

constexpr int tile_columns = 256;  ///< (query, head) pairs of a query tile
constexpr int tile_keys = 64;
/// Key tiles between handovers to the select warps: few at first, when nearly all passes and the threshold rises fast.
constexpr int early_block_tiles = 16, early_blocks = 4;
__host__ __device__ constexpr int late_block_tiles(int rows) { return rows <= 8 ? 32 : 16; }
__host__ __device__ constexpr int most_block_keys(int rows) { return tile_keys * late_block_tiles(rows); }
constexpr int matrix_warps = 8;
__host__ __device__ constexpr int segment_keys(int rows) { return most_block_keys(rows) / matrix_warps; }
constexpr int most_block_buffers = 6;
/// Blocks that the select warps may be behind, for a tile of so many rows.
__host__ __device__ constexpr int block_buffers_for([[maybe_unused]] int rows) {
#ifdef TANDEM_INDEXER_STRESS
  return 2;  // for tests: the matrix warps wait for the select warps all the time
#else
  return rows < 32 ? most_block_buffers : 3;
#endif
}
constexpr int threshold_slots =
    16;  ///< query tiles whose thresholds are live at once: more than most_block_buffers + 1
constexpr int indexer_threads = 384;
/// Of the 168 that each thread has at launch: a raise waits for ever if the sum is greater.
constexpr int matrix_registers = 216, other_registers = 72;
static_assert(2 * matrix_registers + other_registers <= 3 * 168);
constexpr int fetch_warp = matrix_warps + select_warps;

struct alignas(16) QueryTile {
  std::int32_t first_slot, slots;
  std::int32_t begin, end;  ///< keys that its rows see, or begin == end
};

struct IndexerParams {
  CUtensorMap k_map;
  const std::uint8_t* q;
  const float* w;
  const float* k_scale;
  const float* scores;
  const std::int32_t* key_begin;
  const std::int32_t* key_end;
  std::int32_t bounds_stride;
  const std::int32_t* rows;
  const std::int32_t* key_ranges;
  std::int32_t key_range_count;
  std::int32_t row_count;
  std::int32_t keys;
  std::int32_t topk;
  std::int32_t list_capacity;
  float relu_floor;  ///< 0, or -infinity without relu
  bool first, last;
  float* state_scores;
  std::int32_t* state_indices;
  std::int32_t* state_length;
  std::int32_t* indices;
  std::int32_t* length;
  unsigned long long* nan_count;
  float* index_lse;
  // scratch
  std::int32_t* counters;  ///< [0]: next tile, [1]: tiles
  QueryTile* tiles;
  std::uint64_t* segments;
  std::uint64_t* lists;
};

struct RowBounds {
  std::int32_t begin, end;
};

__device__ __forceinline__ std::int32_t local_row(const IndexerParams& p, int slot) {
  return p.rows != nullptr ? p.rows[slot] : slot;
}
__device__ __forceinline__ RowBounds bounds_of(const IndexerParams& p, int row) {
  const std::int64_t at = static_cast<std::int64_t>(row) * p.bounds_stride;
  return {p.key_begin[at], p.key_end[at]};
}
/// A row that sees no more than K keys takes them without scoring.
__device__ __forceinline__ bool takes_all(const IndexerParams& p, RowBounds bounds) {
  return bounds.end - bounds.begin <= p.topk;
}
__device__ __forceinline__ bool needs_scores(const IndexerParams& p, RowBounds bounds) {
  return !takes_all(p, bounds) || (p.index_lse != nullptr && bounds.end > bounds.begin);
}

/// Calls fn(first key of the tile, begin, end of the valid keys in it) for the tiles of 64 keys of [begin, end) that
/// the step has. Tiles start at multiples of 64 whatever the ranges. A long range is visited in passes over every 16th
/// tile: what comes first is then a sample of it, and scores that rise or fall with the position raise the threshold as
/// early as random ones do. Any order gives the same lists.
template <typename Fn>
__device__ __forceinline__ void for_each_key_tile(const IndexerParams& p, int begin, int end, Fn fn) {
  for (int range = 0; range < p.key_range_count; ++range) {
    int from = begin, to = end;
    if (p.key_ranges != nullptr) {
      from = max(from, p.key_ranges[2 * range]);
      to = min(to, p.key_ranges[2 * range + 1]);
    }
    if (from >= to) continue;  // also where both lie in one tile of keys
    const int bits = to - from >= 64 * tile_keys ? 4 : 0;
    for (int pass = 0; pass < 1 << bits; ++pass) {
      const int offset =
          static_cast<int>(__brev(static_cast<unsigned>(pass)) >> (31 - bits) >> 1);  // halves, quarters, ...
      for (int start = (from & ~(tile_keys - 1)) + offset * tile_keys; start < to; start += tile_keys << bits) {
        fn(start, max(from, start), min(to, start + tile_keys));
      }
    }
  }
}
__device__ __forceinline__ int count_key_tiles(const IndexerParams& p, int begin, int end) {
  int count = 0;
  for (int range = 0; range < p.key_range_count; ++range) {
    int from = begin, to = end;
    if (p.key_ranges != nullptr) {
      from = max(from, p.key_ranges[2 * range]);
      to = min(to, p.key_ranges[2 * range + 1]);
    }
    if (from < to) count += (to + tile_keys - 1) / tile_keys - from / tile_keys;
  }
  return count;
}

template <IndexerDtype Dtype>
struct OperandTraits {
  static constexpr int row_bytes = Dtype == IndexerDtype::bf16 ? 256 : 128;
  static constexpr int halves = row_bytes / 128;
  static constexpr int q_bytes = Dtype == IndexerDtype::scores ? 1024 : tile_columns * row_bytes;
  static constexpr int k_bytes = Dtype == IndexerDtype::scores ? 1024 : tile_keys * row_bytes;
  static constexpr int q_buffers = Dtype == IndexerDtype::e4m3 ? 2 : 1;
  static constexpr int stages = Dtype == IndexerDtype::bf16 ? 5 : 8;
};

template <IndexerDtype Dtype, int Heads>
struct alignas(1024) IndexerShared {
  using Traits = OperandTraits<Dtype>;
  static constexpr int rows = tile_columns / Heads;
  std::uint8_t q[Traits::q_buffers][Traits::q_bytes];
  std::uint8_t k[Traits::stages][Traits::k_bytes];
  float w[2][tile_columns];
  RowBounds bounds[2][rows];
  std::uint64_t thresholds[threshold_slots][rows];
  static constexpr int block_buffers = block_buffers_for(rows), block_keys = most_block_keys(rows);
  static constexpr int bins = 4096 / rows;
  /// Of two query tiles: one is finished while the next one's lists grow.
  RowList lists[2][rows];
  alignas(16) std::uint32_t histograms[2][rows][bins];
  std::uint16_t lengths[block_buffers][rows][matrix_warps];
  int4 stage_keys[Traits::stages];  ///< first key; begin, end of the valid ones
  int4 query_tile[2];               ///< first slot, slots, key tiles (negative: no more work)
  int4 handover[block_buffers];     ///< first slot, slots, flags, tile number
  int4 finishing;                   ///< the tile before
  Mbarrier k_full[Traits::stages], k_empty[Traits::stages];
  Mbarrier q_full[2], q_empty[2];
  Mbarrier block_full[block_buffers], block_empty[block_buffers];
  SelectScratch select;
};

/// The matrix column of a query's head. Four queries take turns by pairs of heads, so that the accumulators of a lane,
/// columns 2c and 2c + 1 of every eight, belong to one query: a lane sums all its heads, and nothing is exchanged.
template <int Heads>
__device__ __forceinline__ int column_of(int query, int head) {
  return query / 4 * (4 * Heads) + head / 2 * 8 + query % 4 * 2 + head % 2;
}

/// Where a weight lies in shared memory: the float4 that a lane reads has four heads of its query.
template <int Heads>
__device__ __forceinline__ int weight_place(int query, int head) {
  return query / 4 * (4 * Heads) + head / 4 * 16 + query % 4 * 4 + head % 4;
}

/// The block that a query tile's key tile belongs to.
template <int Rows>
__device__ __forceinline__ int block_of(int key_tile) {
  constexpr int early = early_block_tiles * early_blocks;
  return key_tile < early ? key_tile / early_block_tiles : early_blocks + (key_tile - early) / late_block_tiles(Rows);
}

enum : int { first_of_tile = 1, last_of_tile = 2, no_more_work = 4 };

/// First entry of a matrix warp's segment for a row of the query tile, in a block buffer.
template <int Rows>
__device__ __forceinline__ int segment_start(int buffer, int row, int warp) {
  constexpr int buffers = block_buffers_for(Rows);
  return (((static_cast<int>(blockIdx.x) * buffers + buffer) * Rows + row) * matrix_warps + warp) * segment_keys(Rows);
}

}  // namespace tandem::detail::sm90

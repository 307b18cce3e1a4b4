// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "indexer_launch.hpp"
#include "topk.cuh"
#include "wgmma.cuh"

/// One persistent kernel. A block of threads takes a query tile (256 / Hi rows, so that one matrix instruction is as
/// wide as it can be), walks the keys that its rows see in tiles of 64, and keeps each row's best K.
///
/// Warpgroups: two of matrix warps, which take key tiles in turn so that one's head reduction hides under the other's
/// matrix work; one of three warps that select and one that fetches. Matrix warps write what passes a row's threshold
/// to segments in global memory, one for each (block of 8 key tiles, row, warp), as large as all its keys, so nothing
/// can overflow. The select warps append segments to the row's list and cut the list to K when it is full, which raises
/// the threshold. Thresholds that matrix warps read may be old; an old one only lets more pass.
namespace tandem::detail::sm90 {

constexpr int tile_columns = 256;  ///< (query, head) pairs of a query tile
constexpr int tile_keys = 64;
#ifndef BT
#define BT 16
#define NB 6
#endif
constexpr int block_tiles = BT;  ///< key tiles between handovers to the select warps
constexpr int block_keys = tile_keys * block_tiles;
constexpr int matrix_warps = 8;
constexpr int segment_keys = block_keys / matrix_warps;
constexpr int block_buffers = NB;
constexpr int threshold_slots = 16;  ///< query tiles whose thresholds are live at once: more than block_buffers + 1
constexpr int indexer_threads = 384;
/// Of the 168 that each thread has at launch: a raise waits for ever if the sum is greater.
#ifndef WRES
#define WRES 16
#endif
#ifndef FADDR
#define FADDR 0
#endif
#ifndef MREG
#define MREG 208
#endif
#ifndef HAND
#define HAND 0
#endif
#ifdef CLK
#define TICK(i) { unsigned now; asm volatile("mov.u32 %0, %%clock;" : "=r"(now) :: "memory"); ticks[i] += now - last; last = now; }
#else
#define TICK(i)
#endif
constexpr int resident_weights = WRES;
constexpr int matrix_registers = MREG, other_registers = 504 - 2 * MREG;
static_assert(2 * matrix_registers + other_registers <= 3 * 168);
constexpr int fetch_warp = matrix_warps + select_warps;

struct alignas(16) QueryTile {
  std::int32_t first_slot, slots;
  std::int32_t begin, end;  ///< keys that its rows see, or begin == end
};

struct IndexerParams {
  CUtensorMap q_map, k_map;
  const float* w;
  const float* k_scale;
  const float* scores;
  const std::int32_t* key_begin;
  const std::int32_t* key_end;
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
/// A row that sees no more than K keys takes them without scoring.
__device__ __forceinline__ bool takes_all(const IndexerParams& p, RowBounds bounds) {
  return bounds.end - bounds.begin <= p.topk;
}
__device__ __forceinline__ bool needs_scores(const IndexerParams& p, RowBounds bounds) {
  return !takes_all(p, bounds) || (p.index_lse != nullptr && bounds.end > bounds.begin);
}

/// Calls fn(first key of the tile, begin, end of the valid keys in it) for the tiles of 64 keys of [begin, end) that
/// the step has. Tiles start at multiples of 64 whatever the ranges.
template <typename Fn>
__device__ __forceinline__ void for_each_key_tile(const IndexerParams& p, int begin, int end, Fn fn) {
  for (int range = 0; range < p.key_range_count; ++range) {
    int from = begin, to = end;
    if (p.key_ranges != nullptr) {
      from = max(from, p.key_ranges[2 * range]);
      to = min(to, p.key_ranges[2 * range + 1]);
    }
    for (int start = from & ~(tile_keys - 1); start < to; start += tile_keys) {
      fn(start, max(from, start), min(to, start + tile_keys));
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
  static constexpr int stages = Dtype == IndexerDtype::bf16 ? 5 : 8;
};

template <IndexerDtype Dtype, int Heads>
struct alignas(1024) IndexerShared {
  using Traits = OperandTraits<Dtype>;
  static constexpr int rows = tile_columns / Heads;
  std::uint8_t q[Traits::q_bytes];
  std::uint8_t k[Traits::stages][Traits::k_bytes];
  float w[2][tile_columns];
  RowBounds bounds[2][rows];
  std::uint64_t thresholds[threshold_slots][rows];
  ListState lists[rows];  ///< of the select warps' present tile
  std::uint16_t lengths[block_buffers][rows][matrix_warps];
  int4 stage_keys[Traits::stages];  ///< first key; begin, end of the valid ones
  int4 query_tile[2];               ///< first slot, slots, key tiles (negative: no more work)
  int4 handover[block_buffers];     ///< first slot, slots, flags, tile number
  Mbarrier k_full[Traits::stages], k_empty[Traits::stages];
  Mbarrier q_full[2], q_empty[2];
  Mbarrier block_full[block_buffers], block_empty[block_buffers];
  SelectScratch select;
};

enum : int { first_of_tile = 1, last_of_tile = 2, no_more_work = 4 };

template <IndexerDtype Dtype, int Heads, bool Select>
struct IndexerKernel {
  using Traits = OperandTraits<Dtype>;
  using Shared = IndexerShared<Dtype, Heads>;
  static constexpr int rows = Shared::rows;
  static constexpr int handoff_steps = HAND;
  static constexpr int groups = rows / 4;  ///< a lane ends with one query of each group of four

  // ---------------------------------------------------------------------------------------------- fetch
  static __device__ __forceinline__ void fetch(const IndexerParams& p, Shared& s) {
    const int lane = static_cast<int>(threadIdx.x & 31U);
    int stage = 0;
    unsigned stage_parity = 1;
    const int tiles = p.counters[1];
    for (int number = 0;; ++number) {
      int tile = 0;
      if (lane == 0) tile = atomicAdd(&p.counters[0], 1);
      tile = __shfl_sync(full_warp, tile, 0);
      const int half = number & 1;
      // One buffer of queries: its last readers are the matrix products of the tile before. Two of the rest.
      if (number > 0) s.q_empty[half ^ 1].wait(((number - 1) >> 1) & 1);
      if (tile >= tiles) {
        if (lane == 0) {
          s.query_tile[half] = make_int4(0, 0, -1, 0);
          s.q_full[half].arrive();
        }
        return;
      }
      const QueryTile t = p.tiles[tile];
      int row = 0;
      if (lane < rows) {
        RowBounds bounds{0, 0};
        if (lane < t.slots) {
          row = local_row(p, t.first_slot + lane);
          bounds = {p.key_begin[row], p.key_end[row]};
          if (!needs_scores(p, bounds)) bounds = {0, 0};
        }
        s.bounds[half][lane] = bounds;
      }
      if constexpr (Dtype != IndexerDtype::scores) {
        for (int column = lane; column < tile_columns; column += 32) {
          // A lane of a quad reads its weights of two groups of eight columns as one vector.
          const int query = column / Heads;
          const int from = __shfl_sync(full_warp, row, query);
          const float weight = query < t.slots ? p.w[static_cast<std::int64_t>(from) * Heads + column % Heads] : 0.0F;
          s.w[half][column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2] = weight;
        }
      }
      __syncwarp();
      if (lane == 0) s.query_tile[half] = make_int4(t.first_slot, t.slots, count_key_tiles(p, t.begin, t.end), 0);
      if constexpr (Dtype == IndexerDtype::scores) {
        if (lane == 0) s.q_full[half].arrive();
      } else {
        if (lane == 0) s.q_full[half].arrive_expect(t.slots * Heads * Traits::row_bytes);
        __syncwarp();
        if (lane < t.slots) {
#pragma unroll
          for (int part = 0; part < Traits::halves; ++part) {
            copy_box(s.q + part * (tile_columns * 128) + lane * (Heads * 128), &p.q_map, part * 64, row * Heads,
                     s.q_full[half]);
          }
        }
      }
      if (lane == 0) {
        for_each_key_tile(p, t.begin, t.end, [&](int start, int begin, int end) {
          s.k_empty[stage].wait(stage_parity);
          s.stage_keys[stage] = make_int4(start, begin, end, 0);
          if constexpr (Dtype == IndexerDtype::scores) {
            s.k_full[stage].arrive();
          } else {
            s.k_full[stage].arrive_expect(Traits::k_bytes);
#pragma unroll
            for (int part = 0; part < Traits::halves; ++part) {
              copy_box(s.k[stage] + part * (tile_keys * 128), &p.k_map, part * 64, start, s.k_full[stage]);
            }
          }
          if (++stage == Traits::stages) {
            stage = 0;
            stage_parity ^= 1;
          }
        });
      }
      __syncwarp();
    }
  }

  // ---------------------------------------------------------------------------------------------- scores
  /// Starts the products of a key tile with all (query, head) columns, at this warpgroup's turn: without turns both
  /// would multiply at half speed together, then reduce together.
  static __device__ __forceinline__ void start_products(Shared& s, int stage, int group, float (&acc)[128]) {
    const std::uint64_t keys = swizzled_descriptor(s.k[stage]);
    const std::uint64_t queries = swizzled_descriptor(s.q);
    group == 0 ? named_sync<1, 256>() : named_sync<2, 256>();
    wgmma_fence();
    constexpr int steps = Traits::row_bytes / 32;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const std::uint64_t a = keys + (step / 4) * (tile_keys * 128 / 16) + (step % 4) * 2;
      const std::uint64_t b = queries + (step / 4) * (tile_columns * 128 / 16) + (step % 4) * 2;
      if constexpr (Dtype == IndexerDtype::bf16) {
        wgmma_m64n256k16_bf16(acc, a, b, step != 0);
      } else {
        wgmma_m64n256k32_e4m3(acc, a, b, step != 0);
      }
      if (step >= steps - 1 - handoff_steps) wgmma_commit();
    }
    if (handoff_steps == 0) group == 0 ? named_arrive<2, 256>() : named_arrive<1, 256>();
  }
  /// Waits for them; passes the turn on a little before their end, so that the other's queue behind the last of these.
  static __device__ __forceinline__ void finish_products(int group) {
    wgmma_wait<handoff_steps>();
    if (handoff_steps != 0) group == 0 ? named_arrive<2, 256>() : named_arrive<1, 256>();
    wgmma_wait<0>();
  }

  /// Partial head sums of this lane's columns: queries 4 part .. 4 part + 3 of the tile, two keys. Weights beyond the
  /// resident ones are read from shared memory.
  static __device__ __forceinline__ void partial_sums(const float (&resident)[resident_weights], const float4* shared,
                                                      float relu_floor, int part, const float (&acc)[128],
                                                      float (&sum)[4][2]) {
    constexpr int eights = Heads / 8;
#pragma unroll
    for (int query = 0; query < 4; ++query) {
      sum[query][0] = 0.0F;
      sum[query][1] = 0.0F;
    }
#pragma unroll
    for (int pair = 0; pair < 2 * eights; ++pair) {
      const int at = part * 2 * eights + pair;
      float4 w;
      if (4 * at < resident_weights) {
        w = make_float4(resident[4 * at], resident[4 * at + 1], resident[4 * at + 2], resident[4 * at + 3]);
      } else {
        w = shared[4 * at];
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int query = (2 * pair + side) / eights;
        const float w0 = side == 0 ? w.x : w.z, w1 = side == 0 ? w.y : w.w;
        const float* products = acc + 8 * at + 4 * side;
        const auto rl = [&](int i) { return FADDR == 2 || (FADDR == 1 && i % 2) ? __fadd_rn(products[i], fabsf(products[i])) : max_nan(products[i], relu_floor); };
        sum[query][0] = fmaf(w0, rl(0), sum[query][0]);
        sum[query][0] = fmaf(w1, rl(1), sum[query][0]);
        sum[query][1] = fmaf(w0, rl(2), sum[query][1]);
        sum[query][1] = fmaf(w1, rl(3), sum[query][1]);
      }
    }
  }

  /// Adds the quad's partial sums: lane c ends with query 4 part + c. The order of additions is the same for every
  /// (query, key).
  static __device__ __forceinline__ void exchange(int quad_lane, const float (&sum)[4][2], float (&score)[2]) {
    const bool upper = (quad_lane & 2) != 0, odd = (quad_lane & 1) != 0;
#pragma unroll
    for (int key = 0; key < 2; ++key) {
      float two[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float give = upper ? sum[i][key] : sum[2 + i][key];
        const float keep = upper ? sum[2 + i][key] : sum[i][key];
        two[i] = keep + __shfl_xor_sync(full_warp, give, 2);
      }
      const float give = odd ? two[0] : two[1];
      const float keep = odd ? two[1] : two[0];
      score[key] = keep + __shfl_xor_sync(full_warp, give, 1);
    }
  }

  /// Everything of a lane that outlives a key tile.
  struct Lane {
    int index, quad, warp, group;
    unsigned same_query;  ///< lanes that end with the same query
    unsigned before;      ///< of those, the lower ones
    int key_in_tile;
    int nans = 0;
  };

  /// Writes what passes of a lane's two scores to its warp's segment; `at` is where that segment's next entry goes.
  static __device__ __forceinline__ void offer(const IndexerParams& p, Lane& lane, RowBounds bounds, int4 keys,
                                               std::uint64_t threshold, const float (&score)[2], int& at) {
    const float least = __uint_as_float(static_cast<std::uint32_t>(threshold >> 32));
    const int tie = static_cast<int>(threshold);
    const int begin = max(bounds.begin, keys.y);
    const auto width = static_cast<unsigned>(max(min(bounds.end, keys.z) - begin, 0));
    const int key[2] = {keys.x + lane.key_in_tile, keys.x + lane.key_in_tile + 8};
    bool seen[2], pass[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      seen[i] = static_cast<unsigned>(key[i] - begin) < width;
      pass[i] = seen[i] & ((score[i] > least) | ((score[i] == least) & (key[i] < tie)));
    }
    const float either = score[0] + score[1];
    if (__any_sync(full_warp, either != either)) {  // or two infinities
      if (!takes_all(p, bounds)) {
        lane.nans += (seen[0] && isnan(score[0]) ? 1 : 0) + (seen[1] && isnan(score[1]) ? 1 : 0);
      }
    }
    const unsigned first = __ballot_sync(full_warp, pass[0]) & lane.same_query;
    const unsigned second = __ballot_sync(full_warp, pass[1]) & lane.same_query;
    const int middle = at + __popc(first);
    const int to[2] = {at + __popc(first & lane.before), middle + __popc(second & lane.before)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_if(pass[i], p.segments + to[i], rank_key(score[i], key[i]));
    }
    at = middle + __popc(second);
  }

  /// First entry of this warp's segment of a query in a block buffer.
  static __device__ __forceinline__ int segment_start(int buffer, int query, int warp) {
    return (((static_cast<int>(blockIdx.x) * block_buffers + buffer) * rows + query) * matrix_warps + warp) *
           segment_keys;
  }

  static __device__ __forceinline__ void given_scores(const IndexerParams& p, int4 tile, int query, int key,
                                                      float (&score)[2]) {
    const int row = query < tile.y ? local_row(p, tile.x + query) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = key + 8 * i;
      score[i] = at < p.keys ? p.scores[static_cast<std::int64_t>(row) * p.keys + at] : 0.0F;
    }
  }

  /// What a lane keeps of a key tile until it is offered. One group of four queries: sums before the exchange, which
  /// then hides under the next products too; more groups: scores, which are fewer.
  struct Pending {
    static constexpr bool whole = groups > 1;
    float value[whole ? groups : 4][2];
    float scale[2];
    int4 keys;
  };

  static __device__ __forceinline__ void reduce(const IndexerParams& p, const Shared& s, const Lane& lane, int half,
                                                int4 tile, const float (&resident)[resident_weights],
                                                const float (&acc)[128], Pending& out) {
    const auto* shared = reinterpret_cast<const float4*>(s.w[half]) + lane.quad;
    if constexpr (Dtype == IndexerDtype::scores) {
      given_scores(p, tile, lane.quad, out.keys.x + lane.key_in_tile, out.value[0]);
    } else if constexpr (Pending::whole) {
#pragma unroll
      for (int part = 0; part < groups; ++part) {
        float sum[4][2];
        partial_sums(resident, shared, p.relu_floor, part, acc, sum);
        exchange(lane.quad, sum, out.value[part]);
      }
    } else {
      partial_sums(resident, shared, p.relu_floor, 0, acc, out.value);
    }
  }

  static __device__ __forceinline__ void offer_all(const IndexerParams& p, Shared& s, Lane& lane, int half,
                                                   const volatile std::uint64_t* thresholds, const Pending& pending,
                                                   int (&at)[groups]) {
#pragma unroll
    for (int part = 0; part < groups; ++part) {
      const int query = 4 * part + lane.quad;
      const std::uint64_t threshold = Select ? thresholds[query] : pack_threshold(INFINITY, -1);
      float score[2] = {pending.value[part][0], pending.value[part][1]};
      if constexpr (!Pending::whole && Dtype != IndexerDtype::scores) exchange(lane.quad, pending.value, score);
      if constexpr (Dtype == IndexerDtype::e4m3) {
        score[0] *= pending.scale[0];
        score[1] *= pending.scale[1];
      }
      offer(p, lane, s.bounds[half][query], pending.keys, threshold, score, at[part]);
    }
  }

  /// The matrix warps' side of the handover of blocks to the select warps.
  struct Blocks {
    int buffer = 0;
    unsigned parity = 1;
  };
  static __device__ __forceinline__ void open_block(Shared& s, const Blocks& blocks, const Lane& lane,
                                                    int (&at)[groups]) {
#pragma unroll
    for (int part = 0; part < groups; ++part) {
      at[part] = Select ? segment_start(blocks.buffer, 4 * part + lane.quad, lane.warp) : 0;
    }
    if constexpr (Select) s.block_empty[blocks.buffer].wait(blocks.parity);
  }
  static __device__ __forceinline__ void close_block(Shared& s, Blocks& blocks, const Lane& lane, int4 tile, int number,
                                                     int flags, const int (&at)[groups]) {
    if constexpr (!Select) return;
    if (lane.index < 4) {
#pragma unroll
      for (int part = 0; part < groups; ++part) {
        const int length = at[part] - segment_start(blocks.buffer, 4 * part + lane.quad, lane.warp);
        s.lengths[blocks.buffer][4 * part + lane.index][lane.warp] = static_cast<std::uint16_t>(length);
      }
    }
    if (lane.warp == 0 && lane.index == 0) s.handover[blocks.buffer] = make_int4(tile.x, tile.y, flags, number);
    __syncwarp();
    if (lane.index == 0) s.block_full[blocks.buffer].arrive();
    if (++blocks.buffer == block_buffers) {
      blocks.buffer = 0;
      blocks.parity ^= 1;
    }
  }

  static __device__ __forceinline__ void score(const IndexerParams& p, Shared& s) {
    int thread = static_cast<int>(threadIdx.x);
    asm volatile("" : "+r"(thread));  // keeps it in a register: reading the special one takes long
    Lane lane;
    lane.index = thread & 31;
    lane.quad = thread & 3;
    lane.warp = thread / 32;
    lane.group = lane.warp / 4;
    lane.same_query = 0x11111111U << lane.quad;
    lane.before = lane.same_query & ((1U << lane.index) - 1U);
    lane.key_in_tile = lane.warp % 4 * 16 + lane.index / 4;
    // Key tiles are numbered through all query tiles; this warpgroup has those of its parity.
    int stage = lane.group, next = lane.group;  // the next of them, in the present query tile
    unsigned stage_parity = 0;
    Blocks blocks;
#ifdef CLK
    unsigned ticks[6] = {}, last = clock(), items = 0;
#endif
    if (Dtype != IndexerDtype::scores && lane.group == 1) named_arrive<1, 256>();
    for (int number = 0;; ++number) {
      const int half = number & 1;
      s.q_full[half].wait((number >> 1) & 1);
      const int4 tile = s.query_tile[half];
      if (tile.z < 0) break;
      const volatile std::uint64_t* thresholds = s.thresholds[number % threshold_slots];
      float resident[resident_weights];
#pragma unroll
      for (int i = 0; i < resident_weights / 4; ++i) {
        const float4 four = reinterpret_cast<const float4*>(s.w[half])[4 * i + lane.quad];
        resident[4 * i] = four.x;
        resident[4 * i + 1] = four.y;
        resident[4 * i + 2] = four.z;
        resident[4 * i + 3] = four.w;
      }
      int at[groups];
      int block = 0;
      const int last_block = max(tile.z - 1, 0) / block_tiles;
      const auto flags = [&] { return (block == 0 ? first_of_tile : 0) | (block == last_block ? last_of_tile : 0); };
      Pending pending;
      bool waiting = false;
      open_block(s, blocks, lane, at);
      for (; next < tile.z; next += 2) {
        TICK(5)
        s.k_full[stage].wait(stage_parity);
        const int4 keys = s.stage_keys[stage];
        float acc[128];
        TICK(0)
        if constexpr (Dtype != IndexerDtype::scores) start_products(s, stage, lane.group, acc);
        TICK(1)
        if (waiting) offer_all(p, s, lane, half, thresholds, pending, at);
        TICK(2)
        if (next / block_tiles != block) {
          close_block(s, blocks, lane, tile, number, flags(), at);
          ++block;
          open_block(s, blocks, lane, at);
        }
        pending.keys = keys;
        if constexpr (Dtype == IndexerDtype::e4m3) {
          const int key = keys.x + lane.key_in_tile;
          pending.scale[0] = key < p.keys ? p.k_scale[key] : 0.0F;
          pending.scale[1] = key + 8 < p.keys ? p.k_scale[key + 8] : 0.0F;
        }
        TICK(3)
        if constexpr (Dtype != IndexerDtype::scores) finish_products(lane.group);
        TICK(4)
#ifdef CLK
        ++items;
#endif
        __syncwarp();
        if (lane.index == 0) s.k_empty[stage].arrive();
        reduce(p, s, lane, half, tile, resident, acc, pending);
        waiting = true;
        stage += 2;
        if (stage >= Traits::stages) {
          stage -= Traits::stages;
          stage_parity ^= 1;
        }
      }
      next -= tile.z;
      if (waiting) offer_all(p, s, lane, half, thresholds, pending, at);
      close_block(s, blocks, lane, tile, number, flags(), at);
      while (block < last_block) {
        ++block;
        open_block(s, blocks, lane, at);
        close_block(s, blocks, lane, tile, number, flags(), at);
      }
      __syncwarp();
      if (lane.index == 0) s.q_empty[half].arrive();
    }
    if constexpr (Select) {
      s.block_empty[blocks.buffer].wait(blocks.parity);
      if (thread == 0) s.handover[blocks.buffer] = make_int4(0, 0, no_more_work, 0);
      __syncwarp();
      if (lane.index == 0) s.block_full[blocks.buffer].arrive();
    }
#ifdef CLK
    if (blockIdx.x == 5 && (thread == 0 || thread == 128)) for (int i = 0; i < 6; ++i) p.counters[8 + 8 * lane.group + i] = ticks[i] / items;
#endif
    const int nans = __reduce_add_sync(full_warp, lane.nans);
    if (lane.index == 0 && nans != 0) atomicAdd(p.nan_count, static_cast<unsigned long long>(nans));
  }

  // ---------------------------------------------------------------------------------------------- selection
  static __device__ __forceinline__ std::uint64_t* list_of(const IndexerParams& p, int row) {
    return p.lists + (static_cast<std::int64_t>(blockIdx.x) * rows + row) * p.list_capacity;
  }

  static __device__ __forceinline__ void publish_threshold(Shared& s, int number, int row, int thread) {
    if (thread == 0) {
      const std::uint64_t key = s.lists[row].threshold;
      *reinterpret_cast<volatile std::uint64_t*>(&s.thresholds[number % threshold_slots][row]) =
          pack_threshold(rank_key_score(key), rank_key_row(key));
    }
  }

  /// Lists of a new query tile: empty, or the state that an earlier step left.
  static __device__ __forceinline__ void start_tile(const IndexerParams& p, Shared& s, int4 tile, int thread) {
    if (thread < rows) {
      const int kept = !p.first && thread < tile.y ? p.state_length[tile.x + thread] : 0;
      s.lists[thread].threshold = 0;
      s.lists[thread].count = kept;
    }
    select_sync();
    if (p.first) return;
    for (int row = 0; row < tile.y; ++row) {
      const int n = s.lists[row].count;
      if (n == 0) continue;
      const std::int64_t from = static_cast<std::int64_t>(tile.x + row) * p.topk;
      std::uint64_t* list = list_of(p, row);
      for (int i = thread; i < n; i += select_threads) {
        list[i] = rank_key(p.state_scores[from + i], p.state_indices[from + i]);
      }
      select_sync();
      restore_threshold(list, s.lists[row], p.topk, s.select, thread);
      if (n == p.topk) publish_threshold(s, tile.w, row, thread);
    }
  }

  static __device__ __forceinline__ void finish_tile(const IndexerParams& p, Shared& s, int4 tile, int thread) {
    for (int slot = 0; slot < tile.y; ++slot) {
      const int row = local_row(p, tile.x + slot);
      const RowBounds bounds{p.key_begin[row], p.key_end[row]};
      std::uint64_t* list = list_of(p, slot);
      const int n = s.lists[slot].count;
      if (p.last) {
        if (!takes_all(p, bounds)) {
          write_ascending(list, n, bounds.begin, bounds.end, p.indices + static_cast<std::int64_t>(row) * p.topk,
                          p.topk, s.select, thread);
          if (thread == 0) p.length[row] = n;
        }
        if (p.index_lse != nullptr && needs_scores(p, bounds)) {
          const float lse = log_sum_exp(list, n, s.select, thread);
          if (thread == 0) p.index_lse[row] = lse;
        }
      } else if (needs_scores(p, bounds)) {
        const std::int64_t to = static_cast<std::int64_t>(tile.x + slot) * p.topk;
        for (int i = thread; i < n; i += select_threads) {
          p.state_scores[to + i] = rank_key_score(list[i]);
          p.state_indices[to + i] = rank_key_row(list[i]);
        }
        if (thread == 0) p.state_length[tile.x + slot] = n;
      }
    }
    // For the tile that is threshold_slots later; matrix warps cannot be there before this block is handed back.
    if (thread < rows) s.thresholds[tile.w % threshold_slots][thread] = no_threshold;
    select_sync();
  }

  static __device__ __forceinline__ void select(const IndexerParams& p, Shared& s) {
    const int thread = static_cast<int>(threadIdx.x) - 2 * 128;
    const int warp = thread / 32;
    int buffer = 0;
    unsigned parity = 0;
#ifdef CLK
    unsigned ticks[5] = {}, last = clock(), cuts = 0;
#endif
    for (;;) {
      s.block_full[buffer].wait(parity);
      const int4 tile = s.handover[buffer];
      TICK(0)
#ifdef CLK
      if (blockIdx.x == 5 && thread == 0 && (tile.z & no_more_work) != 0) { for (int i = 0; i < 5; ++i) p.counters[24 + i] = ticks[i] / 1000; p.counters[29] = cuts; }
#endif
      if ((tile.z & no_more_work) != 0) return;
      if ((tile.z & first_of_tile) != 0) start_tile(p, s, tile, thread);
      for (int row = warp; row < rows; row += select_warps) {
        append_segments(p.segments + segment_start(buffer, row, 0), segment_keys, s.lengths[buffer][row],
                        list_of(p, row), s.lists[row]);
      }
      select_sync();
      TICK(1)
      const bool final = (tile.z & last_of_tile) != 0;
      if (!final && thread == 0) s.block_empty[buffer].arrive();
      for (int row = 0; row < tile.y; ++row) {
        // Not all rows at once: a long pause would fill the block buffers.
        const int stagger = (p.list_capacity - block_keys - p.topk) / 8;
        const int count = s.lists[row].count;
        const bool full = count + block_keys > p.list_capacity - (row % 4) * stagger;
        if (!full && !(final && count > p.topk)) continue;
#ifdef CLK
        ++cuts;
#endif
        std::uint64_t* list = list_of(p, row);
        const bool rough = !final && p.topk >= 512 && cut_roughly(list, s.lists[row], p.topk, s.select, thread);
        if (!rough) cut_list(list, s.lists[row], p.topk, s.select, thread);
        publish_threshold(s, tile.w, row, thread);
      }
      select_sync();
      TICK(2)
      if (final) {
        finish_tile(p, s, tile, thread);
        TICK(3)
        if (thread == 0) s.block_empty[buffer].arrive();
      }
      if (++buffer == block_buffers) {
        buffer = 0;
        parity ^= 1;
      }
    }
  }

  static __device__ __forceinline__ void run(const IndexerParams& p) {
    extern __shared__ __align__(1024) std::uint8_t storage[];
    Shared& s = *reinterpret_cast<Shared*>(storage);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      for (int i = 0; i < Traits::stages; ++i) {
        s.k_full[i].init(1);
        s.k_empty[i].init(4);
      }
      for (int i = 0; i < 2; ++i) {
        s.q_full[i].init(1);
        s.q_empty[i].init(matrix_warps);
      }
      for (int i = 0; i < block_buffers; ++i) {
        s.block_full[i].init(matrix_warps);
        s.block_empty[i].init(1);
      }
      fence_barrier_init();
    }
    for (int i = thread; i < threshold_slots * rows; i += indexer_threads) {
      s.thresholds[i / rows][i % rows] = no_threshold;
    }
    __syncthreads();
    const int group = thread / 128;
    if (group < 2) {
      raise_registers<matrix_registers>();
      score(p, s);
    } else {
      lower_registers<other_registers>();
      if (thread / 32 == fetch_warp) {
        fetch(p, s);
      } else if constexpr (Select) {
        select(p, s);
      }
    }
  }
};

template <IndexerDtype Dtype, int Heads, bool Select>
__global__ void __launch_bounds__(indexer_threads, 1) indexer_kernel(const __grid_constant__ IndexerParams p) {
  IndexerKernel<Dtype, Heads, Select>::run(p);
}

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_shared.cuh"
#include "topk.cuh"
#include "wgmma.cuh"

/// The matrix warps: products of a key tile, head sums, and what passes the thresholds.
namespace tandem::detail::sm90 {

template <IndexerDtype Dtype, int Heads, bool Select>
struct ScoreRole {
  using Traits = OperandTraits<Dtype>;
  using Shared = IndexerShared<Dtype, Heads>;
  static constexpr int rows = Shared::rows;
  /// Of a lane's 64 head weights; the others are read again for each key tile. Shared memory answers slowly while the
  /// matrix units read it, but registers are short.
  static constexpr int resident_weights = Heads >= 32 ? 32 : Heads == 16 ? 16 : 4;
  /// Those that follow are read while the products run, as far as registers go.
  static constexpr int fours_ahead = Heads == 64 ? 4 : 0;
  /// Whether the two warpgroups take turns at the products.
  static constexpr bool turns = Dtype == IndexerDtype::bf16;
  static constexpr int groups = rows / 4;  ///< a lane has one query of each group of four

  /// What offers compare with is kept in registers, and read again long before it is needed, if that is little: shared
  /// memory answers slowly while the matrix units read it.
  static constexpr bool resident_limits = groups <= 2;

  /// Starts the products of a key tile with all (query, head) columns, at this warpgroup's turn: without turns both
  /// would multiply at half speed together, then reduce together.
  static __device__ __forceinline__ void start_products(Shared& s, int stage, int group, int buffer,
                                                        float (&acc)[128]) {
    const std::uint64_t keys = swizzled_descriptor(s.k[stage]);
    const std::uint64_t queries = swizzled_descriptor(s.q[buffer]);
    if constexpr (turns) group == 0 ? named_sync<1, 256>() : named_sync<2, 256>();
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
    }
    wgmma_commit();
    // The last products are still in the queue: the other's follow them without a gap.
    if constexpr (turns) group == 0 ? named_arrive<2, 256>() : named_arrive<1, 256>();
  }

  /// Scores of this lane's query of a group of four, two keys: the sum over heads in one fixed order. Weights beyond
  /// the resident ones are read from shared memory.
  static __device__ __forceinline__ void head_sums(const float (&resident)[resident_weights],
                                                   const float4 (&ahead)[fours_ahead + 1], const float4* shared,
                                                   float relu_floor, int part, const float (&acc)[128],
                                                   float (&score)[2]) {
    float sum[2][4] = {};
#pragma unroll
    for (int four = 0; four < Heads / 4; ++four) {
      const int at = part * (Heads / 4) + four;
      float4 w;
      if (4 * at < resident_weights) {
        w = make_float4(resident[4 * at], resident[4 * at + 1], resident[4 * at + 2], resident[4 * at + 3]);
      } else if (at < resident_weights / 4 + fours_ahead) {
        w = ahead[at - resident_weights / 4];
      } else {
        w = shared[4 * at];
      }
      const float* products = acc + 8 * at;
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        sum[key][0] = fmaf(w.x, max_nan(products[2 * key], relu_floor), sum[key][0]);
        sum[key][1] = fmaf(w.y, max_nan(products[2 * key + 1], relu_floor), sum[key][1]);
        sum[key][2] = fmaf(w.z, max_nan(products[4 + 2 * key], relu_floor), sum[key][2]);
        sum[key][3] = fmaf(w.w, max_nan(products[4 + 2 * key + 1], relu_floor), sum[key][3]);
      }
    }
#pragma unroll
    for (int key = 0; key < 2; ++key) score[key] = (sum[key][0] + sum[key][1]) + (sum[key][2] + sum[key][3]);
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

  static __device__ __forceinline__ void given_scores(const IndexerParams& p, int4 tile, int query, int key,
                                                      float (&score)[2]) {
    const int row = query < tile.y ? local_row(p, tile.x + query) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = key + 8 * i;
      score[i] = at < p.keys ? p.scores[static_cast<std::int64_t>(row) * p.keys + at] : 0.0F;
    }
  }

  /// What a lane keeps of a key tile until it is offered.
  struct Pending {
    float score[groups][2];
    float scale[2];
    int4 keys;
  };

  static __device__ __forceinline__ void reduce(const IndexerParams& p, const Shared& s, const Lane& lane, int half,
                                                int4 tile, const float (&resident)[resident_weights],
                                                const float4 (&ahead)[fours_ahead + 1], const float (&acc)[128],
                                                Pending& out) {
    if constexpr (Dtype == IndexerDtype::scores) {
      given_scores(p, tile, lane.quad, out.keys.x + lane.key_in_tile, out.score[0]);
    } else {
      const auto* shared = reinterpret_cast<const float4*>(s.w[half]) + lane.quad;
#pragma unroll
      for (int part = 0; part < groups; ++part)
        head_sums(resident, ahead, shared, p.relu_floor, part, acc, out.score[part]);
    }
  }

  /// What a lane's queries see and have reached.
  struct Limits {
    static constexpr int kept = resident_limits ? groups : 1;
    RowBounds bounds[kept];
    std::uint64_t threshold[kept];
  };
  static __device__ __forceinline__ void read_bounds(const Shared& s, const Lane& lane, int number, int part,
                                                     Limits& limits) {
    limits.bounds[part % Limits::kept] = s.bounds[number & 1][4 * part + lane.quad];
  }
  static __device__ __forceinline__ void read_threshold(const Shared& s, const Lane& lane, int number, int part,
                                                        Limits& limits) {
    const volatile std::uint64_t* thresholds = s.thresholds[number % threshold_slots];
    limits.threshold[part % Limits::kept] = Select ? thresholds[4 * part + lane.quad] : pack_threshold(INFINITY, -1);
  }

  static __device__ __forceinline__ void offer_all(const IndexerParams& p, const Shared& s, Lane& lane, int number,
                                                   Limits& limits, const Pending& pending, int (&at)[groups]) {
#pragma unroll
    for (int part = 0; part < groups; ++part) {
      if constexpr (!resident_limits) {
        read_bounds(s, lane, number, part, limits);
        read_threshold(s, lane, number, part, limits);
      }
      float score[2] = {pending.score[part][0], pending.score[part][1]};
      if constexpr (Dtype == IndexerDtype::e4m3) {
        score[0] *= pending.scale[0];
        score[1] *= pending.scale[1];
      }
      offer(p, lane, limits.bounds[part % Limits::kept], pending.keys, limits.threshold[part % Limits::kept], score,
            at[part]);
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
      at[part] = Select ? segment_start<rows>(blocks.buffer, 4 * part + lane.quad, lane.warp) : 0;
    }
    if constexpr (Select) s.block_empty[blocks.buffer].wait(blocks.parity);
  }
  static __device__ __forceinline__ void close_block(Shared& s, Blocks& blocks, const Lane& lane, int4 tile, int number,
                                                     int flags, const int (&at)[groups]) {
    if constexpr (!Select) return;
    if (lane.index < 4) {
#pragma unroll
      for (int part = 0; part < groups; ++part) {
        const int length = at[part] - segment_start<rows>(blocks.buffer, 4 * part + lane.quad, lane.warp);
        s.lengths[blocks.buffer][4 * part + lane.index][lane.warp] = static_cast<std::uint16_t>(length);
      }
    }
    if (lane.warp == 0 && lane.index == 0) s.handover[blocks.buffer] = make_int4(tile.x, tile.y, flags, number);
    __syncwarp();
    if (lane.index == 0) s.block_full[blocks.buffer].arrive();
    if (++blocks.buffer == Shared::block_buffers) {
      blocks.buffer = 0;
      blocks.parity ^= 1;
    }
  }

  static __device__ __forceinline__ void run(const IndexerParams& p, Shared& s) {
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
    if (turns && lane.group == 1) named_arrive<1, 256>();
    for (int number = 0;; ++number) {
      const int half = number & 1;
      s.q_full[half].wait((number >> 1) & 1);
      fence_async();  // queries came by ordinary copies
      const int4 tile = s.query_tile[half];
      if (tile.z < 0) break;
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
      const int last_block = block_of<rows>(max(tile.z - 1, 0));
      const auto flags = [&] { return (block == 0 ? first_of_tile : 0) | (block == last_block ? last_of_tile : 0); };
      Pending pending;
      Limits limits;
      if constexpr (resident_limits) {
#pragma unroll
        for (int part = 0; part < groups; ++part) {
          read_bounds(s, lane, number, part, limits);
          read_threshold(s, lane, number, part, limits);
        }
      }
      bool waiting = false, here = false;
      int4 keys{};
      open_block(s, blocks, lane, at);
      for (; next < tile.z; next += 2) {
        if (!here) {
          s.k_full[stage].wait(stage_parity);
          keys = s.stage_keys[stage];
        }
        float acc[128];
        if constexpr (Dtype != IndexerDtype::scores)
          start_products(s, stage, lane.group, number % Traits::q_buffers, acc);
        if (waiting) offer_all(p, s, lane, number, limits, pending, at);
        if (block_of<rows>(next) != block) {
          close_block(s, blocks, lane, tile, number, flags(), at);
          ++block;
          open_block(s, blocks, lane, at);
        }
        // All that the next products and offers need is asked for under these products.
        const int own = stage;
        stage += 2;
        if (stage >= Traits::stages) {
          stage -= Traits::stages;
          stage_parity ^= 1;
        }
        pending.keys = keys;
        here = resident_limits && next + 2 < tile.z;
        if (here) {
          s.k_full[stage].wait(stage_parity);
          keys = s.stage_keys[stage];
        }
        if constexpr (resident_limits) {
#pragma unroll
          for (int part = 0; part < groups; ++part) read_threshold(s, lane, number, part, limits);
        }
        if constexpr (Dtype == IndexerDtype::e4m3) {
          const int key = pending.keys.x + lane.key_in_tile;
          pending.scale[0] = key < p.keys ? p.k_scale[key] : 0.0F;
          pending.scale[1] = key + 8 < p.keys ? p.k_scale[key + 8] : 0.0F;
        }
        float4 ahead[fours_ahead + 1];
        if constexpr (Dtype != IndexerDtype::scores) {
          const auto* shared = reinterpret_cast<const float4*>(s.w[half]) + lane.quad;
#pragma unroll
          for (int i = 0; i < fours_ahead; ++i) ahead[i] = read_now(shared + resident_weights + 4 * i);
          wgmma_wait<0>();
        }
        __syncwarp();
        if (lane.index == 0) s.k_empty[own].arrive();
        reduce(p, s, lane, half, tile, resident, ahead, acc, pending);
        waiting = true;
      }
      next -= tile.z;
      if (waiting) offer_all(p, s, lane, number, limits, pending, at);
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
    const int nans = __reduce_add_sync(full_warp, lane.nans);
    if (lane.index == 0 && nans != 0) atomicAdd(p.nan_count, static_cast<unsigned long long>(nans));
  }
};

}  // namespace tandem::detail::sm90

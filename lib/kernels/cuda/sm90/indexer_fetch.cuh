// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_shared.cuh"

/// The warp that takes query tiles off the queue and has the copy engine bring queries and keys.
namespace tandem::detail::sm90 {

template <IndexerDtype Dtype, int Heads>
struct FetchRole {
  using Traits = OperandTraits<Dtype>;
  using Shared = IndexerShared<Dtype, Heads>;
  static constexpr int rows = Shared::rows;

  /// Brings a query's rows to their columns, in the layout that the copy engine would give them.
  static __device__ __forceinline__ void fetch_query(const IndexerParams& p, std::uint8_t* q, int query, int row,
                                                     int lane) {
    constexpr int chunks = Traits::row_bytes / 16;
    const std::uint8_t* from = p.q + static_cast<std::int64_t>(row) * (Heads * Traits::row_bytes) + lane * 16;
#pragma unroll 8
    for (int at = 0; at < Heads * chunks; at += 32) {
      const int head = (at + lane) / chunks, chunk = lane % chunks;
      const int column = column_of<Heads>(query, head);
      std::uint8_t* to = q + chunk / 8 * (tile_columns * 128) + column * 128 + (chunk % 8 ^ column % 8) * 16;
      copy_16_bytes(to, from + at * 16);
    }
  }

  static __device__ __forceinline__ void run(const IndexerParams& p, Shared& s) {
    const int lane = static_cast<int>(threadIdx.x & 31U);
    int stage = 0;
    unsigned stage_parity = 1;
    const int tiles = p.counters[1];
    for (int number = 0;; ++number) {
      int tile = 0;
      if (lane == 0) tile = atomicAdd(&p.counters[0], 1);
      tile = __shfl_sync(full_warp, tile, 0);
      const int half = number & 1;
      // Of some there is one buffer: its last readers are the matrix products of the tile before.
      const int before = number - Traits::q_buffers;
      if (before >= 0) s.q_empty[before & 1].wait((before >> 1) & 1);
      if (tile >= tiles) {
        if (lane == 0) s.query_tile[half] = make_int4(0, 0, -1, 0);
        s.q_full[half].arrive();
        s.q_full[half].arrive();
        return;
      }
      const QueryTile t = p.tiles[tile];
      int row = 0;
      if (lane < rows) {
        RowBounds bounds{0, 0};
        if (lane < t.slots) {
          row = local_row(p, t.first_slot + lane);
          bounds = bounds_of(p, row);
          if (!needs_scores(p, bounds)) bounds = {0, 0};
        }
        s.bounds[half][lane] = bounds;
      }
      if constexpr (Dtype != IndexerDtype::scores) {
        for (int column = lane; column < tile_columns; column += 32) {
          const int query = column / Heads, head = column % Heads;
          const int from = __shfl_sync(full_warp, row, query);
          const float weight = query < t.slots ? p.w[static_cast<std::int64_t>(from) * Heads + head] : 0.0F;
          s.w[half][weight_place<Heads>(query, head)] = weight;
        }
      }
      __syncwarp();
      if (lane == 0) s.query_tile[half] = make_int4(t.first_slot, t.slots, count_key_tiles(p, t.begin, t.end), 0);
      if constexpr (Dtype != IndexerDtype::scores) {
        for (int query = 0; query < t.slots; ++query) {
          fetch_query(p, s.q[number % Traits::q_buffers], query, __shfl_sync(full_warp, row, query), lane);
        }
      }
      arrive_after_copies(s.q_full[half]);
      s.q_full[half].arrive();
      if (lane == 0) {
        for_each_key_tile(p, t.begin, t.end, [&](int start, int begin, int end) {
          s.k_empty[stage].wait(stage_parity);
          s.stage_keys[stage] = make_int4(start, begin, end, 0);
          s.k_full[stage].arrive();
          if constexpr (Dtype != IndexerDtype::scores) {
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
};

}  // namespace tandem::detail::sm90

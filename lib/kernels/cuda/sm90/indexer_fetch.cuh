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
          bounds = bounds_of(p, row);
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
};

}  // namespace tandem::detail::sm90

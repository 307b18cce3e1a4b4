// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_loss_shared.cuh"

/// The warpgroup that brings queries and keys of the indexer loss to shared memory, always as bf16: so products, and
/// their errors, are the same for both types.
namespace tandem::detail::sm90 {

template <int Heads, bool E4m3, int Passes>
struct LossFetchRole {
  using Shared = IndexerLossShared<Heads, E4m3>;
  static constexpr int row_bytes = E4m3 ? 128 : 256;

  /// Codes on their way through registers: a lane has 16 of each of its rows, two neighbouring granules of a slice.
  using Codes = uint4[E4m3 ? 4 : 1];

  /// Starts to read the rows that `rows` is aimed at, as far as they go through registers: before their place is free.
  static __device__ __forceinline__ void read(const RowGather& rows, Codes& codes) {
    if constexpr (E4m3) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes[i] = make_uint4(0, 0, 0, 0);
        if (rows.bytes[i] != 0) codes[i] = __ldcg(reinterpret_cast<const uint4*>(rows.source[i]));
      }
    }
  }
  /// Brings them to their place; slices of the tile are `slice_stride` bytes apart.
  static __device__ __forceinline__ void copy(const RowGather& rows, const Codes& codes, std::uint8_t* tile,
                                              int slice_stride, Mbarrier& full) {
    if constexpr (E4m3) {
      std::uint8_t* const slice = tile + (rows.lane & 7) / 4 * slice_stride;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = rows.warp * 16 + i * 4 + rows.lane / 8, granule = (rows.lane & 3) * 2;
        *granule_of(slice, row, granule) = widened(codes[i].x, codes[i].y);
        *granule_of(slice, row, granule + 1) = widened(codes[i].z, codes[i].w);
      }
      fence_async_shared();
      full.arrive();
    } else {
#pragma unroll
      for (int slice = 0; slice < index_slices; ++slice) rows.copy(shared_address(tile) + slice * slice_stride, slice);
      arrive_after_copies(full);
    }
  }
  static __device__ __forceinline__ uint4* granule_of(std::uint8_t* slice, int row, int granule) {
    return reinterpret_cast<uint4*>(slice + row * 128 + ((granule ^ (row & 7)) * 16));
  }
  static __device__ __forceinline__ uint4 widened(std::uint32_t a, std::uint32_t b) {
    return make_uint4(bf16_from_e4m3(a & 0xFFFF), bf16_from_e4m3(a >> 16), bf16_from_e4m3(b & 0xFFFF),
                      bf16_from_e4m3(b >> 16));
  }

  static __device__ __forceinline__ void fetch_queries(const IndexerLossParams& p, Shared& s, RowGather& rows,
                                                       std::int64_t row, std::uint32_t number) {
    const std::uint32_t buffer = number & 1U;
    s.q_empty[buffer].wait((number >> 1 & 1U) ^ 1U);
    if (rows.warp * 16 >= Shared::padded_heads) {
      s.q_full[buffer].arrive();
      return;
    }
    const IndexRowSource heads{p.q + row * (Heads * row_bytes), row_bytes, Heads};
    rows.aim(heads, rows.warp * 16 + (rows.lane & 15));
    Codes codes;
    read(rows, codes);
    copy(rows, codes, s.q[buffer][0], Shared::q_slice_bytes, s.q_full[buffer]);
  }

  static __device__ __forceinline__ void run(const IndexerLossParams& p, Shared& s) {
    RowGather rows(static_cast<int>(threadIdx.x) - 128);
    const IndexRowSource keys{p.k, row_bytes, p.keys};
    LossRing ring;
    std::uint32_t number = 0;
    for (std::int64_t i = blockIdx.x; i < p.rows; i += gridDim.x) {
      const std::int64_t row = p.first_row + i;
      const int length = row_length(p, row), tiles = tiles_of(length);
      if (tiles == 0) continue;
      const std::int32_t* const list = p.indices + row * p.topk;
      int entry = rows.entry(list, length, 0);
      fetch_queries(p, s, rows, row, number++);
      for (int pass = 0; pass < Passes; ++pass) {
        for (int tile = 0; tile < tiles; ++tile) {
          rows.aim(keys, entry);
          Codes codes;
          read(rows, codes);
          entry = rows.entry(list, length, tile + 1 < tiles ? tile + 1 : 0);
          s.empty[ring.stage].wait(ring.parity ^ 1U);
          copy(rows, codes, s.tile(ring.stage), slice_bytes, s.full[ring.stage]);
          ring.advance(p.stages);
        }
      }
    }
  }
};

}  // namespace tandem::detail::sm90

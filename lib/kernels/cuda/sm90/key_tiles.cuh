// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ptx.cuh"

/// Tiles of keys for sparse attention, forward and backward: their shape, and the gather of their rows.
///
/// Keys are taken 64 at a time. A tile lies in shared memory as slices of 64 rows x 64 columns (128-byte rows,
/// swizzled), which the matrix instructions read both as K (along the columns) and as V (transposed, along the rows).
/// Hopper's copy engine cannot gather rows, so a warpgroup of ordinary 16-byte asynchronous copies does.
namespace tandem::detail::sm90 {

constexpr int tile_rows = 64;
constexpr int slice_bytes = tile_rows * 128;
constexpr int value_slices = 8;
constexpr unsigned whole_warp = 0xFFFFFFFFU;
constexpr float ln_2 = 0.693147180559945309F;
constexpr float log2_e = 1.44269504088896341F;

/// Length of a row's list; `Params` has the lists.
template <class Params>
__device__ __forceinline__ int row_length(const Params& p, std::int64_t query) {
  const int length = p.length[query];
  return length < 0 || length > p.topk ? 0 : length;
}
__host__ __device__ __forceinline__ int tiles_of(int length) { return (length + tile_rows - 1) / tile_rows; }

/// A producer thread's part of a tile: 16 bytes of every slice of four rows. Eight lanes copy a slice's 128 bytes of a
/// row; a warp has rows 16 warp .. 16 warp + 15.
struct RowGather {
  int lane, warp;
  std::uint32_t target[4];  ///< in a slice
  const std::uint8_t* source[4];
  std::uint32_t bytes[4];  ///< 0 for rows that are not there: nothing is read, zeros are written

  __device__ __forceinline__ explicit RowGather(int thread) : lane(thread & 31), warp(thread / 32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + i * 4 + lane / 8;
      target[i] = static_cast<std::uint32_t>(row * 128 + (((lane & 7) ^ (row & 7)) * 16));
    }
  }

  /// This lane's entry of a list (lanes 16.. repeat), -1 beyond its length.
  __device__ __forceinline__ int entry(const std::int32_t* list, int length, int tile) const {
    const int at = tile * tile_rows + warp * 16 + (lane & 15);
    return at < length ? list[at] : -1;
  }
  /// Takes the warp's entries; returns which of its 16 rows are there.
  template <class Params>
  __device__ __forceinline__ std::uint32_t aim(const Params& p, int entry) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto row = static_cast<std::uint32_t>(__shfl_sync(whole_warp, entry, i * 4 + lane / 8));
      const bool there = row < p.keys;
      source[i] = p.kv + static_cast<std::int64_t>(there ? row : 0) * p.kv_row_bytes + (lane & 7) * 16;
      bytes[i] = there ? 16 : 0;
    }
    return __ballot_sync(whole_warp, static_cast<std::uint32_t>(entry) < p.keys) & 0xFFFFU;
  }
  /// Copies columns 64 column_slice .. + 63 to the slice at `slice`.
  __device__ __forceinline__ void copy(std::uint32_t slice, int column_slice) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_16(slice + target[i], source[i] + column_slice * 128, bytes[i]);
  }
};

/// The lanes of a quad have two columns each of four groups of eight, as bf16 pairs: exchanged, each has the eight of
/// one.
__device__ __forceinline__ uint4 gather_eight(std::uint32_t (&v)[4], int quad) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t other = __shfl_xor_sync(whole_warp, (quad & 1) != 0 ? v[i] : v[i + 1], 1);
    v[i] = (quad & 1) != 0 ? other : v[i];
    v[i + 1] = (quad & 1) != 0 ? v[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(whole_warp, (quad & 2) != 0 ? v[i] : v[i + 2], 2);
    v[i] = (quad & 2) != 0 ? other : v[i];
    v[i + 2] = (quad & 2) != 0 ? v[i + 2] : other;
  }
  return make_uint4(v[0], v[1], v[2], v[3]);
}

}  // namespace tandem::detail::sm90

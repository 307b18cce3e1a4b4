// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "row_scatter.cuh"
#include "sparse_backward_shared.cuh"
#include "wgmma_attention.cuh"

/// The sparse backward's pass over keys: for tiles of a row, dKV = P^T dO + dS^T Q with all heads as the inner
/// dimension, added to the rows of dkv. A work item is a row, half of the columns (0..255 and those that are no value,
/// or 256..511) and some of the row's tiles. Q and dO of the item stay in shared memory, tiles of P and dS pass
/// through.
///
/// Two matrix warpgroups take tiles in turn, so that one multiplies while the other adds; adding takes longer. Terms
/// for a fixed order of additions are stored instead.
///
/// What L2 can add depends on whether it holds the rows. If dkv is larger than L2, items are ordered by place in the
/// list before row: `visit_tiles` tiles of all rows of the block, then the next ones. As lists ascend, what is under
/// way then lies in a window of dkv. The price is that Q and dO are loaded again for each visit.
namespace tandem::detail::sm90 {

constexpr int key_pass_threads = 384;
/// Of the 168 that each thread has at launch: a raise waits for ever if the sum is greater.
constexpr int key_pass_matrix_registers = 224, key_pass_fetch_registers = 56;
static_assert(2 * key_pass_matrix_registers + key_pass_fetch_registers <= 3 * 168);
constexpr int key_pass_value_slices = 4;  ///< of a half

template <int HeadBlocks>
struct alignas(1024) KeyPassShared {
  static constexpr int head_slice_bytes = HeadBlocks * slice_bytes;  ///< 64 columns of all heads
  static constexpr int stages = HeadBlocks == 1 ? 4 : 2;
  static constexpr std::uint32_t stage_bytes = 2 * head_slice_bytes;

  std::uint8_t q[key_pass_value_slices + 1][head_slice_bytes];
  std::uint8_t dout[key_pass_value_slices][head_slice_bytes];
  std::uint8_t weights[stages][2][HeadBlocks][slice_bytes];  ///< P, dS
  Mbarrier q_full, q_empty;
  Mbarrier full[stages], empty[stages];

  __device__ __forceinline__ void init() {
    q_full.init(1);
    q_empty.init(8);
    for (int stage = 0; stage < stages; ++stage) {
      full[stage].init(1);
      empty[stage].init(4);
    }
  }
};

struct KeyPassItem {
  std::int64_t block_row, query;
  int half, first_tile, tiles;

  /// `shift`: half of the grid. Blocks take items one grid apart, and would otherwise always have the same half.
  __device__ __forceinline__ KeyPassItem(const SparseBackwardParams& p, std::int64_t item, std::int64_t shift) {
    const std::int64_t pair = item >> 1;
    const std::int64_t visit = pair / p.rows;
    block_row = pair - visit * p.rows;
    query = p.first_row + block_row;
    half = static_cast<int>((item ^ (pair / shift)) & 1);
    first_tile = static_cast<int>(visit) * p.visit_tiles;
    tiles = max(0, min(p.visit_tiles, tiles_of(row_length(p, query)) - first_tile));
  }
  static __device__ __forceinline__ std::int64_t count(const SparseBackwardParams& p) { return 2 * p.rows * p.visits; }
};

template <int HeadBlocks, int Slices>
struct KeyPassFetchRole {
  using Shared = KeyPassShared<HeadBlocks>;

  static __device__ __forceinline__ void fetch_tile(const SparseBackwardParams& p, Shared& s, const KeyPassItem& item,
                                                    int tile, std::uint32_t number, std::uint64_t policy) {
    const std::uint32_t stage = number % Shared::stages, parity = number / Shared::stages & 1U;
    s.empty[stage].wait(parity ^ 1U);
    s.full[stage].arrive_expect(Shared::stage_bytes);
    copy_bulk(s.weights[stage], weights_of(p, item.block_row, item.first_tile + tile), Shared::stage_bytes,
              s.full[stage], policy);
  }

  static __device__ __forceinline__ void fetch_queries(const SparseBackwardParams& p, Shared& s,
                                                       const KeyPassItem& item, std::uint32_t parity) {
    const bool rope = item.half == 0 && Slices > value_slices;
    const int first = item.half * key_pass_value_slices;
    s.q_empty.wait(parity ^ 1U);
    s.q_full.arrive_expect((2 * key_pass_value_slices + (rope ? 1U : 0U)) * Shared::head_slice_bytes);
    const auto copy = [&](std::uint8_t* to, const CUtensorMap* map, int slice) {
      for (int block = 0; block < HeadBlocks; ++block) {
        copy_box(to + block * slice_bytes, map, slice * 64, block * block_heads, static_cast<int>(item.query),
                 s.q_full);
      }
    };
    for (int i = 0; i < key_pass_value_slices; ++i) copy(s.dout[i], &p.dout_map, first + i);
    for (int i = 0; i < key_pass_value_slices; ++i) copy(s.q[i], &p.q_map, first + i);
    if (rope) copy(s.q[key_pass_value_slices], &p.q_map, value_slices);
  }

  static __device__ __forceinline__ void run(const SparseBackwardParams& p, Shared& s) {
    const std::uint64_t policy = evict_first_policy();
    std::uint32_t number = 0, parity = 0;
    for (std::int64_t i = blockIdx.x; i < KeyPassItem::count(p); i += gridDim.x) {
      const KeyPassItem item(p, i, gridDim.x / 2);
      if (item.tiles == 0) continue;
      // As many tiles as there is room for go ahead of the queries, which wait for the end of the item before.
      const int ahead = min(item.tiles, Shared::stages);
      for (int tile = 0; tile < ahead; ++tile) fetch_tile(p, s, item, tile, number++, policy);
      fetch_queries(p, s, item, parity);
      parity ^= 1U;
      for (int tile = ahead; tile < item.tiles; ++tile) fetch_tile(p, s, item, tile, number++, policy);
    }
  }
};

template <int HeadBlocks, int Slices, bool Ordered>
struct KeyPassMatrixRole {
  using Shared = KeyPassShared<HeadBlocks>;
  static constexpr bool has_rope = Slices > value_slices;
  static constexpr int steps = 4 * HeadBlocks;  ///< of 16 heads

  float sum[128];  ///< 256 columns
  float rope[has_rope ? 32 : 1];
  int lane, warp;

  __device__ __forceinline__ void release(Mbarrier& barrier) const {
    if (lane == 0) barrier.arrive();
  }

  /// dKV of a tile: rows are keys.
  template <bool Rope>
  __device__ __forceinline__ void multiply(Shared& s, std::uint32_t stage) {
    const std::uint32_t p = swizzled_operand(s.weights[stage][0]), ds = swizzled_operand(s.weights[stage][1]);
    const std::uint32_t dout = transposed_operand(s.dout[0], Shared::head_slice_bytes);
    const std::uint32_t q = transposed_operand(s.q[0], Shared::head_slice_bytes);
    constexpr auto weights_at = [](int step) { return step / 4 * (slice_bytes / 16) + step % 4 * straight_step; };
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      wgmma_kt(sum, p + weights_at(step), dout + step * transposed_step, step > 0);
    }
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      wgmma_kt(sum, ds + weights_at(step), q + step * transposed_step, true);
    }
    if constexpr (Rope) {
      constexpr int at = key_pass_value_slices * (Shared::head_slice_bytes / 16);
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        wgmma_kt(rope, ds + weights_at(step), q + at + step * transposed_step, step > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sum);
    if constexpr (Rope) pin(rope);
  }

  template <int Half>
  __device__ __forceinline__ void tile(Shared& s, const ScatterRows& rows, std::uint32_t stage, bool last) {
    constexpr bool with_rope = Half == 0 && has_rope;
    multiply<with_rope>(s, stage);
    release(s.empty[stage]);
    if (last) release(s.q_empty);
    scatter_columns<Ordered>(sum, rows, 256 * Half, lane);
    if constexpr (with_rope) scatter_columns<Ordered>(rope, rows, 512, lane);
  }

  /// Where the gradients of entries `entry` and `entry` + 8 go.
  static __device__ __forceinline__ ScatterRows targets(const SparseBackwardParams& p, const KeyPassItem& item,
                                                        int entry, int length) {
    ScatterRows rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = entry + 8 * half;
      const int key = at < length ? p.indices[item.query * p.topk + at] : -1;
      rows.there[half] = static_cast<std::uint32_t>(key) < p.keys;
      rows.to[half] =
          Ordered ? p.terms + (item.block_row * p.topk + at) * (Slices * 64) : p.dkv + key * p.dkv_row_stride;
    }
    return rows;
  }

  __device__ __forceinline__ void run(const SparseBackwardParams& p, Shared& s) {
    lane = static_cast<int>(threadIdx.x) & 31;
    warp = static_cast<int>(threadIdx.x) / 32 & 3;
    const std::uint32_t group = threadIdx.x / 128;
    std::uint32_t number = 0, parity = 0;
    for (std::int64_t i = blockIdx.x; i < KeyPassItem::count(p); i += gridDim.x) {
      const KeyPassItem item(p, i, gridDim.x / 2);
      if (item.tiles == 0) continue;
      s.q_full.wait(parity);
      parity ^= 1U;
      const int length = row_length(p, item.query);
      const auto first = static_cast<int>((number ^ group) & 1U);  // tiles go on in turns from item to item
      for (int t = first; t < item.tiles; t += 2) {
        const std::uint32_t at = number + static_cast<std::uint32_t>(t), stage = at % Shared::stages;
        const int entry = (item.first_tile + t) * tile_rows + warp * 16 + lane / 4;
        const ScatterRows rows = targets(p, item, entry, length);
        s.full[stage].wait(at / Shared::stages & 1U);
        const bool last = t + 2 >= item.tiles;
        if (item.half == 0) {
          tile<0>(s, rows, stage, last);
        } else {
          tile<1>(s, rows, stage, last);
        }
      }
      if (first >= item.tiles) {
        __syncwarp();  // all lanes have seen the queries come
        release(s.q_empty);
      }
      number += static_cast<std::uint32_t>(item.tiles);
    }
  }
};

template <int HeadBlocks, int Slices, bool Ordered>
__global__ void __launch_bounds__(key_pass_threads, 1)
    sparse_backward_keys_kernel(const __grid_constant__ SparseBackwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t storage[];
  auto& s = set_up<KeyPassShared<HeadBlocks>>(storage);
  if (threadIdx.x < 256) {
    raise_registers<key_pass_matrix_registers>();
    KeyPassMatrixRole<HeadBlocks, Slices, Ordered> role;
    role.run(p, s);
  } else {
    lower_registers<key_pass_fetch_registers>();
    if (threadIdx.x == 256) KeyPassFetchRole<HeadBlocks, Slices>::run(p, s);
  }
}

}  // namespace tandem::detail::sm90

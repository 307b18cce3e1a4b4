// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "key_tiles.cuh"
#include "sparse_backward_launch.hpp"

/// What the kernels of the sparse backward share. It runs in passes over a block of rows at a time:
///   statistics: of each row and head what the softmax's gradient needs, delta = sum(out * dout) among it; dsink;
///   queries:    S, P, dP, dS and dq; P and dS go to the workspace (sparse_backward_queries.cuh);
///   keys:       P^T dout + dS^T q over all heads, added to dkv (sparse_backward_keys.cuh).
///
/// One kernel for all would have to hold a row's dq and the tile's dkv in registers at once, which leaves none for a
/// gather that runs ahead, and would add to dkv once for every 64 heads. Through the workspace both are cheap, for 8
/// bytes a pair of head and key. The keys pass is bound by what L2 can add, so halving that is worth most.
namespace tandem::detail::sm90 {

constexpr int block_heads = 64;

/// Of a pair of heads: log2(e) lse of both, then delta of both.
struct alignas(16) HeadPair {
  float lse_log2[2], delta[2];
};
constexpr int block_pairs = block_heads / 2;

struct SparseBackwardParams {
  CUtensorMap q_map, dout_map;  ///< [s, H, columns] in boxes of 64 columns of 64 heads; heads beyond H are 0
  const std::uint8_t* kv;
  std::int64_t kv_row_bytes;
  std::uint32_t keys;
  const std::int32_t* indices;
  const std::int32_t* length;
  float scale, scale_log2;  ///< scale * log2(e): exponentials are powers of 2
  const std::uint16_t* out;
  std::int64_t out_row_stride, out_head_stride;
  const std::uint16_t* dout;
  std::int64_t dout_row_stride, dout_head_stride;
  const float* lse;
  const float* sink;
  float* dsink;
  std::uint16_t* dq;
  std::int64_t dq_row_stride, dq_head_stride;
  float* dkv;
  std::int64_t dkv_row_stride;
  float* head_sums;  ///< of the first row of this block
  std::int32_t heads, head_blocks, topk;
  std::int64_t first_row, rows;  ///< of this block
  /// [rows][tiles of K][P, dS][head block]: a tile as it lies in shared memory, 64 keys x 64 heads of bf16 in swizzled
  /// rows of 128 bytes. Only tiles that a row's length reaches are written.
  std::uint8_t* weights;
  HeadPair* statistics;  ///< [rows][head block][32]
  std::int32_t visit_tiles, visits;
};

/// P of a tile for the first head block; dS lies head_blocks tiles behind, other head blocks one after the other.
__device__ __forceinline__ std::uint8_t* weights_of(const SparseBackwardParams& p, std::int64_t block_row, int tile) {
  return p.weights + (block_row * (p.topk / tile_rows) + tile) * (2 * p.head_blocks * slice_bytes);
}

/// Products with 64 heads or keys, 16 at a time, in a transposed operand: 16 rows of 128 bytes.
constexpr int transposed_step = 16 * 128 / 16;
/// The same along the columns of a K-major operand: 32 bytes.
constexpr int straight_step = 32 / 16;

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "indexer_loss_launch.hpp"
#include "key_tiles.cuh"

/// What the roles of the indexer loss share. A work item is a row; its keys pass through shared memory twice, 64 at a
/// time: first for their scores, then, once the row's softmax is known, for the gradients.
///
/// With g_j the gradient of key j's score and m_hj whether its dot with head h is open (relu), both gradients of rows
/// are products with m, which is exact in bf16:
///   d_index_k_j = g_j sum_h (m_hj w_h) q_h     d_index_q_h = w_h sum_j (m_hj g_j scale_j) k_j
/// Weights, and for f32 results g as well, go into them in two bf16 pieces, upper and lower: 16 bits of them.
///
/// What bounds it is L2: 512 bytes are added for each pair of row and key, at 3.7 TB/s 9.1 ms for the 66.06 million
/// pairs of 32768 causal rows with K 2048; the two gathers of 256 bytes would take 3.9 ms more (at 8.6 TB/s) if nothing
/// of them hid behind the additions: 13 ms is the prediction. The five products of 64 heads take 9 ms at 600 TFLOP/s,
/// beside that. Two blocks share a multiprocessor, so that one adds while the other scores.
namespace tandem::detail::sm90 {

constexpr int loss_threads = 256;
/// Of the 128 that each thread has at launch: a raise waits for ever if the sum is greater. Codes take registers to
/// widen.
template <bool E4m3>
constexpr int loss_fetch_registers = E4m3 ? 64 : 48;
template <bool E4m3>
constexpr int loss_matrix_registers = 2 * 128 - loss_fetch_registers<E4m3>;
constexpr int index_slices = 2;  ///< of 64 columns
constexpr int index_tile_bytes = index_slices * slice_bytes;
constexpr int most_loss_stages = 4;
/// So that two blocks fit a multiprocessor, which takes 1 KB more for each.
constexpr int loss_block_bytes = 113 * 1024;

struct IndexerLossParams {
  const std::uint8_t* q;
  const float* w;
  const std::uint8_t* k;
  const float* k_scale;
  std::uint32_t keys;
  const std::int32_t* indices;
  const std::int32_t* length;
  const float* head_sums;
  std::int64_t head_sums_stride;
  std::int64_t first_row, rows;
  double loss_scale, score_scale;  ///< score_scale: of the scores' gradients
  double* loss;
  void* d_index_q;
  float* d_index_w;
  float* d_index_k;
  std::int32_t topk, stages;
  bool relu;
};

/// Rows for RowGather: keys by entries of a list, or the heads of a row of queries.
struct IndexRowSource {
  const std::uint8_t* kv;
  std::int64_t kv_row_bytes;
  std::uint32_t keys;
};

template <int Heads, bool E4m3>
struct alignas(1024) IndexerLossShared {
  /// A product's inner dimension is 16 at least: heads that are not there are 0.
  static constexpr int padded_heads = Heads < 16 ? 16 : Heads;
  static constexpr int q_slice_bytes = padded_heads * 128;
  /// d_index_q of e4m3 is f32.
  static constexpr int pieces = E4m3 ? 2 : 1;

  std::uint8_t q[2][index_slices][q_slice_bytes];  ///< of rows in turn
  /// m_hj g_j scale_j of a tile, [head][key]; at the end of a row d_index_w by warp.
  std::uint8_t gradients[pieces][Heads * 128];
  Mbarrier q_full[2], q_empty[2];
  Mbarrier full[most_loss_stages], empty[most_loss_stages];
  /// The row's weights, of two heads a word: their upper pieces, and their lower ones.
  uint2 weights[padded_heads / 2];
  double sums[4][4];  ///< by warp, of what RowSoftmax adds up
  float maxima[4];

  __device__ __forceinline__ void init() {
    for (int i = 0; i < 2; ++i) {
      q_full[i].init(128);
      q_empty[i].init(4);
    }
    for (int i = 0; i < most_loss_stages; ++i) {
      full[i].init(128);
      empty[i].init(4);
    }
  }
  /// Behind this struct lie as many tiles as there is room for, then the row's scores.
  __device__ __forceinline__ std::uint8_t* tile(int stage) {
    return reinterpret_cast<std::uint8_t*>(this + 1) + stage * index_tile_bytes;
  }
  __device__ __forceinline__ float* scores(int stages) { return reinterpret_cast<float*>(tile(stages)); }

  static int bytes(int topk, int stages) {
    return static_cast<int>(sizeof(IndexerLossShared)) + stages * index_tile_bytes +
           topk * static_cast<int>(sizeof(float));
  }
};

/// A place in the ring of tiles, with the parity of its present use.
struct LossRing {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

}  // namespace tandem::detail::sm90

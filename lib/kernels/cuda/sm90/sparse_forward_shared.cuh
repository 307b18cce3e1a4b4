// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "key_tiles.cuh"
#include "sparse_forward_launch.hpp"

/// What both sparse forward kernels share beside the tiles of keys.
namespace tandem::detail::sm90 {

struct SparseForwardParams {
  CUtensorMap q_map;  ///< [s, H, d] in boxes of 64 columns of a head block; heads beyond H are 0
  const std::uint8_t* kv;
  std::int64_t kv_row_bytes;
  std::uint32_t keys;
  const std::int32_t* indices;
  const std::int32_t* length;
  const float* sink;
  float scale_log2;  ///< scale * log2(e): exponentials are powers of 2
  std::uint16_t* out;
  std::int64_t out_row_stride, out_head_stride;
  float* lse;
  std::int32_t heads, head_blocks, topk;
  std::int64_t items;  ///< queries x head blocks: neighbours run at the same time and share rows in L2
};

/// log2 domain: an empty softmax has maximum -infinity, which must not be subtracted from itself.
__device__ __forceinline__ float finite_maximum(float maximum) { return maximum == -INFINITY ? 0.0F : maximum; }

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/generic/lists.cuh"
#include "kernels/cuda/generic/tiles.cuh"

/// Logits and softmax of a row: groups of 16 heads by tiles of 16 keys, one logit for each thread of the block.
namespace tandem::detail::cuda::generic {

constexpr int group_heads = 16;
static_assert(group_heads * tile_keys == block_threads && tile_keys == 16, "half a warp for each head");

template <class T>
struct AttentionRows {
  Rows<const T> q;
  Rows<const T> kv;
  const float* sink;  ///< or null
  int heads;
  float scale;
};

template <class T>
AttentionRows<T> attention_rows(const AttentionInputs& in) {
  return {rows_of<const T>(in.q), rows_of<const T>(in.kv), in.sink.valid() ? in.sink.data_as<const float>() : nullptr,
          static_cast<int>(in.q.size(1)), in.scale};
}

/// Shared memory of a group's queries and a tile of keys.
template <int dim>
struct GroupTile {
  static constexpr int stride = padded_columns<dim>;
  float q[group_heads * stride];
  float kv[tile_keys * stride];
  float p[tile_keys * group_heads];  ///< of a key, head by head
  float factors[group_heads];
  int keys[tile_keys];

  __device__ static int head() { return static_cast<int>(threadIdx.x) / tile_keys; }
  __device__ static int entry() { return static_cast<int>(threadIdx.x) % tile_keys; }

  template <class T>
  __device__ void load_queries(const AttentionRows<T>& in, std::int64_t row, int first_head) {
    __syncthreads();
    load_inner<dim>(in.q, row, first_head, group_heads, in.heads, q);
    __syncthreads();
  }
  template <class T, class Keys>
  __device__ void load_tile(const AttentionRows<T>& in, const Keys& list, int first) {
    __syncthreads();
    load_keys<dim>(in.kv, list, first, tile_keys, keys, kv);
  }
  /// Of this thread's head and key.
  __device__ bool counts() const { return keys[entry()] >= 0; }
  __device__ float logit(float scale) const {
    return counts() ? dot<dim>(q + head() * stride, kv + entry() * stride) * scale : -INFINITY;
  }
};

template <class Combine>
__device__ float half_warp_reduce(float value, const Combine& combine) {
#pragma unroll
  for (int distance = tile_keys / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(all_lanes, value, distance));
  }
  return value;
}

/// The softmax of a head, tile by tile: the same in all 16 threads of the head.
struct RunningSoftmax {
  float most = -INFINITY;
  float sum = 0;

  template <class T>
  __device__ RunningSoftmax(const AttentionRows<T>& in, int head) {
    if (in.sink == nullptr || head >= in.heads) return;
    most = in.sink[head];
    sum = 1;
  }

  /// Takes one more tile; returns this thread's exponential, and by how much earlier ones shrink.
  __device__ float add(float logit, float& shrink) {
    const float tile_most = half_warp_reduce(logit, [](float a, float b) { return fmaxf(a, b); });
    const float now = fmaxf(most, tile_most);
    shrink = most == now ? 1.0F : expf(most - now);
    const float e = logit == -INFINITY ? 0.0F : expf(logit - now);
    sum = sum * shrink + half_warp_reduce(e, [](float a, float b) { return a + b; });
    most = now;
    return e;
  }

  __device__ float lse() const { return sum == 0 ? -INFINITY : most + logf(sum); }
};

}  // namespace tandem::detail::cuda::generic

// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/cuda/generic/attention.cuh"

namespace tandem::detail::cuda::generic {
namespace {

/// Fewer than in the forward: queries and dout of a group are both in shared memory.
constexpr int backward_heads = 8;
constexpr int pairs = backward_heads * tile_keys;  // of a head and a key
static_assert(2 * pairs == block_threads, "half of the threads take q . kv, half dout . v");

template <class T>
struct BackwardArgument {
  AttentionRows<T> in;
  Lists lists;
  std::int64_t first_row;
  Rows<const T> dout, out;
  Rows<const float> lse;
  Rows<T> dq;
  Rows<float> dkv;
  float* dsink;  ///< or null
};

template <int dim>
struct BackwardTile {
  static constexpr int stride = padded_columns<dim>;
  static constexpr int value_stride = padded_columns<value_columns>;
  float q[backward_heads * stride];
  float dout[backward_heads * value_stride];
  float kv[tile_keys * stride];
  float p[tile_keys * backward_heads];   ///< of a key, head by head
  float ds[tile_keys * backward_heads];  ///< dP at first
  float delta[backward_heads];
  int keys[tile_keys];
};

/// delta = sum of out * dout for each head of the group, a warp a head.
template <class T, int dim>
__device__ void load_delta(BackwardTile<dim>& tile, const BackwardArgument<T>& a, std::int64_t row, int first_head) {
  static_assert(backward_heads == block_warps, "a warp for each head");
  float sum = 0;
  if (first_head + warp() < a.in.heads) {
    const T* const out = a.out.at(row, first_head + warp());
    for (int c = lane(); c < value_columns; c += 32) {
      sum = __fmaf_rn(widen(out[c]), tile.dout[warp() * tile.value_stride + c], sum);
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
  if (lane() == 0) tile.delta[warp()] = sum;
}

/// P and dS of the tile. Those of keys that do not count, and of heads that there are not, are 0.
template <class T, int dim>
__device__ void differentiate(BackwardTile<dim>& tile, const BackwardArgument<T>& a, std::int64_t row, int first_head) {
  const int pair = static_cast<int>(threadIdx.x) % pairs;
  const int head = pair / tile_keys;
  const int entry = pair % tile_keys;
  const bool first_half = static_cast<int>(threadIdx.x) < pairs;
  const bool counts = tile.keys[entry] >= 0 && first_head + head < a.in.heads;
  const float* const kv = tile.kv + entry * tile.stride;
  float logit = 0;
  if (first_half) {
    logit = dot<dim>(tile.q + head * tile.stride, kv) * a.in.scale;
  } else {
    tile.ds[entry * backward_heads + head] = dot<value_columns>(tile.dout + head * tile.value_stride, kv);
  }
  __syncthreads();
  if (first_half) {
    const int at = entry * backward_heads + head;
    const float p = counts ? expf(logit - a.lse.at(row)[first_head + head]) : 0.0F;
    tile.p[at] = p;
    tile.ds[at] = counts ? p * (tile.ds[at] - tile.delta[head]) * a.in.scale : 0.0F;
  }
  __syncthreads();
}

/// dkv += dS^T q in all columns, P^T dout in those of the value: the sum over the group's heads, then one addition.
template <int dim>
__device__ void add_dkv(const BackwardTile<dim>& tile, const Rows<float>& dkv) {
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += block_threads) {
#pragma unroll 2
    for (int j = 0; j < tile_keys; ++j) {
      if (tile.keys[j] < 0) continue;
      float sum = 0;
#pragma unroll
      for (int h = 0; h < backward_heads; ++h) {
        sum = __fmaf_rn(tile.ds[j * backward_heads + h], tile.q[h * tile.stride + c], sum);
      }
      if (c < value_columns) {
#pragma unroll
        for (int h = 0; h < backward_heads; ++h) {
          sum = __fmaf_rn(tile.p[j * backward_heads + h], tile.dout[h * tile.value_stride + c], sum);
        }
      }
      atomicAdd(dkv.at(tile.keys[j]) + c, sum);
    }
  }
}

/// One block for each row and group of heads.
template <class T, int dim>
__global__ void __launch_bounds__(block_threads) attend_backward(BackwardArgument<T> a) {
  __shared__ ListKeys::Memory list_memory;
  constexpr int columns = (dim + block_threads - 1) / block_threads;  // of dq that a thread keeps, for all heads
  auto& tile = *static_cast<BackwardTile<dim>*>(dynamic_shared());
  const std::int64_t row = a.first_row + blockIdx.x;
  const int first_head = static_cast<int>(blockIdx.y) * backward_heads;
  const ListKeys list(a.lists, row, list_memory, &tile);
  float dq[columns][backward_heads] = {};
  if (list.live() > 0) {
    __syncthreads();
    load_inner<dim>(a.in.q, row, first_head, backward_heads, a.in.heads, tile.q);
    load_inner<value_columns>(a.dout, row, first_head, backward_heads, a.in.heads, tile.dout);
    __syncthreads();
    load_delta(tile, a, row, first_head);
    for (int first = 0; first < list.count(); first += tile_keys) {
      __syncthreads();
      load_keys<dim>(a.in.kv, list, first, tile_keys, tile.keys, tile.kv);
      differentiate(tile, a, row, first_head);
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const int c = static_cast<int>(threadIdx.x) + i * block_threads;
        if (c >= dim) break;
        for (int j = 0; j < tile_keys; ++j) {
          const float key = tile.kv[j * tile.stride + c];
#pragma unroll
          for (int h = 0; h < backward_heads; ++h) {
            dq[i][h] = __fmaf_rn(tile.ds[j * backward_heads + h], key, dq[i][h]);
          }
        }
      }
      add_dkv(tile, a.dkv);
    }
    const int head = first_head + static_cast<int>(threadIdx.x);
    if (a.dsink != nullptr && static_cast<int>(threadIdx.x) < backward_heads && head < a.in.heads) {
      atomicAdd(a.dsink + head, -expf(a.in.sink[head] - a.lse.at(row)[head]) * tile.delta[threadIdx.x]);
    }
  }
#pragma unroll
  for (int i = 0; i < columns; ++i) {
    const int c = static_cast<int>(threadIdx.x) + i * block_threads;
    if (c >= dim) break;
#pragma unroll
    for (int h = 0; h < backward_heads; ++h) {
      if (first_head + h < a.in.heads) narrow(dq[i][h], a.dq.at(row, first_head + h)[c]);
    }
  }
}

const bool registered = register_kernel(attend_backward<float, 576>) && register_kernel(attend_backward<float, 512>) &&
                        register_kernel(attend_backward<Bf16, 576>) && register_kernel(attend_backward<Bf16, 512>);

template <class T, int dim>
void run(const NativeStream& stream, RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
         ListFault* fault) {
  const BackwardArgument<T> a{attention_rows<T>(in),
                              lists_of(in.indices, in.length, in.kv.size(0), fault),
                              rows.begin,
                              rows_of<const T>(grads.dout),
                              rows_of<const T>(grads.out),
                              rows_of<const float>(grads.lse),
                              rows_of<T>(grads.dq),
                              rows_of<float>(grads.dkv),
                              grads.dsink.valid() ? grads.dsink.data_as<float>() : nullptr};
  launch(stream, attend_backward<T, dim>, a, rows.size(), (in.q.size(1) + backward_heads - 1) / backward_heads,
         std::max(sizeof(BackwardTile<dim>), list_bytes(in.indices.size(1))));
}

}  // namespace

void sparse_mla_backward(const NativeStream& stream, RowRange rows, const AttentionInputs& in,
                         const AttentionGradients& grads, ListFault* fault) {
  const bool wide = in.q.size(2) == 576;
  if (in.q.dtype() == DType::bf16) {
    wide ? run<Bf16, 576>(stream, rows, in, grads, fault) : run<Bf16, 512>(stream, rows, in, grads, fault);
  } else {
    wide ? run<float, 576>(stream, rows, in, grads, fault) : run<float, 512>(stream, rows, in, grads, fault);
  }
}

}  // namespace tandem::detail::cuda::generic

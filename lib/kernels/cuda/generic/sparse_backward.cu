// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/cuda/generic/attention.cuh"
#include "kernels/cuda/generic/chosen_rows.cuh"
#include "kernels/cuda/generic/ordered.cuh"

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
  KernelRows rows;
  Rows<const T> dout, out;
  Rows<const float> lse;
  Rows<T> dq;
  Rows<float> dkv;  ///< or null: a kernel of its own adds to it, and to dsink
  float* dsink;     ///< or null
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

/// dkv += dS^T q in all columns, P^T dout in those of the value: the sum over the group's heads, then one addition,
/// which need not be atomic if the block owns the keys.
template <bool owned, int dim>
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
      float* const to = dkv.at(tile.keys[j]) + c;
      if constexpr (owned) {
        *to += sum;
      } else {
        atomicAdd(to, sum);
      }
    }
  }
}

template <class T, int dim>
__device__ void differentiate_row(const BackwardArgument<T>& a, std::int64_t row, ListKeys::Memory& list_memory) {
  constexpr int columns = (dim + block_threads - 1) / block_threads;  // of dq that a thread keeps, for all heads
  auto& tile = *static_cast<BackwardTile<dim>*>(dynamic_shared());
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
      if (a.dkv.data != nullptr) add_dkv<false>(tile, a.dkv);
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

/// One block for each row and group of heads.
template <class T, int dim>
__global__ void __launch_bounds__(block_threads) attend_backward(BackwardArgument<T> a) {
  __shared__ ListKeys::Memory list_memory;
  a.rows.for_each([&](std::int64_t row) { differentiate_row<T, dim>(a, row, list_memory); });
}

/// What all rows add to the keys that the block owns, in the order of rows and groups of heads.
template <class T, int dim>
__global__ void __launch_bounds__(block_threads) add_in_order(BackwardArgument<T> a) {
  __shared__ ListKeys::Memory list_memory;
  __shared__ int count;
  auto* const entries = static_cast<std::uint16_t*>(dynamic_shared());
  auto& tile =
      *reinterpret_cast<BackwardTile<dim>*>(static_cast<unsigned char*>(dynamic_shared()) + owned_bytes(a.lists.topk));
  const OwnedKeys own = owned_keys(a.lists.landed_rows);
  a.rows.for_each_in_order([&](std::int64_t row) {
    const ListKeys list(a.lists, row, list_memory, &tile);
    const OwnedEntries keys = choose(list, own, entries, count);
    for (int first = 0; first < keys.count(); first += tile_keys) {
      load_keys<dim>(a.in.kv, keys, first, tile_keys, tile.keys, tile.kv);
      for (int first_head = 0; first_head < a.in.heads; first_head += backward_heads) {
        __syncthreads();
        load_inner<dim>(a.in.q, row, first_head, backward_heads, a.in.heads, tile.q);
        load_inner<value_columns>(a.dout, row, first_head, backward_heads, a.in.heads, tile.dout);
        __syncthreads();
        load_delta(tile, a, row, first_head);
        differentiate(tile, a, row, first_head);
        add_dkv<true>(tile, a.dkv);
      }
      __syncthreads();
    }
  });
}

/// dsink of one head, row by row.
template <class T, int dim>
__global__ void __launch_bounds__(block_threads) sum_sink(BackwardArgument<T> a) {
  __shared__ ListKeys::Memory list_memory;
  __shared__ float sums[block_warps];
  const int head = static_cast<int>(blockIdx.x);
  float dsink = 0;
  a.rows.for_each_in_order([&](std::int64_t row) {
    const ListKeys list(a.lists, row, list_memory, dynamic_shared());
    if (list.live() == 0) return;
    const T* const out = a.out.at(row, head);
    const T* const dout = a.dout.at(row, head);
    float delta = 0;
    for (int c = static_cast<int>(threadIdx.x); c < value_columns; c += block_threads) {
      delta = __fmaf_rn(widen(out[c]), widen(dout[c]), delta);
    }
    delta = block_sum(delta, sums);
    dsink -= expf(a.in.sink[head] - a.lse.at(row)[head]) * delta;
  });
  if (threadIdx.x == 0) a.dsink[head] += dsink;
}

template <class T, int dim>
bool register_kernels() {
  return register_kernel(attend_backward<T, dim>) && register_kernel(add_in_order<T, dim>) &&
         register_kernel(sum_sink<T, dim>);
}

const bool registered = register_kernels<float, 576>() && register_kernels<float, 512>() &&
                        register_kernels<Bf16, 576>() && register_kernels<Bf16, 512>();

template <class T, int dim>
void run(const NativeStream& stream, RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
         ListFault* fault, const ChosenRows* only, bool ordered) {
  const BackwardArgument<T> a{attention_rows<T>(in),
                              lists_of(in.indices, in.length, in.kv.size(0), fault),
                              KernelRows(rows, only),
                              rows_of<const T>(grads.dout),
                              rows_of<const T>(grads.out),
                              rows_of<const float>(grads.lse),
                              rows_of<T>(grads.dq),
                              rows_of<float>(grads.dkv),
                              grads.dsink.valid() ? grads.dsink.data_as<float>() : nullptr};
  const std::int64_t groups = (in.q.size(1) + backward_heads - 1) / backward_heads;
  const std::size_t shared = std::max(sizeof(BackwardTile<dim>), list_bytes(in.indices.size(1)));
  if (!ordered) return launch(stream, attend_backward<T, dim>, a, a.rows.blocks(groups), groups, shared);
  if (rows.empty()) return;
  BackwardArgument<T> queries = a;
  queries.dkv = {};
  queries.dsink = nullptr;
  launch(stream, attend_backward<T, dim>, queries, a.rows.blocks(groups), groups, shared);
  launch(stream, add_in_order<T, dim>, a, ordered_blocks, 1, owned_bytes(in.indices.size(1)) + shared);
  if (a.dsink != nullptr) launch(stream, sum_sink<T, dim>, a, in.q.size(1), 1, list_bytes(in.indices.size(1)));
}

}  // namespace

void sparse_mla_backward(const NativeStream& stream, RowRange rows, const AttentionInputs& in,
                         const AttentionGradients& grads, ListFault* fault, const ChosenRows* only, bool ordered) {
  const bool wide = in.q.size(2) == 576;
  if (in.q.dtype() == DType::bf16) {
    wide ? run<Bf16, 576>(stream, rows, in, grads, fault, only, ordered)
         : run<Bf16, 512>(stream, rows, in, grads, fault, only, ordered);
  } else {
    wide ? run<float, 576>(stream, rows, in, grads, fault, only, ordered)
         : run<float, 512>(stream, rows, in, grads, fault, only, ordered);
  }
}

}  // namespace tandem::detail::cuda::generic

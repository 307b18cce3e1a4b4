// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/cuda/generic/attention.cuh"
#include "kernels/cuda/generic/chosen_rows.cuh"

namespace tandem::detail::cuda::generic {
namespace {

template <class T>
struct ForwardArgument {
  AttentionRows<T> in;
  Lists lists;
  Rows<T> out;
  Rows<float> lse;
  KernelRows rows;
};

/// A thread keeps two columns of the value for all heads of the group.
template <class T, int dim>
__device__ void attend_row(const ForwardArgument<T>& a, std::int64_t row, ListKeys::Memory& list_memory) {
  auto& tile = *static_cast<GroupTile<dim>*>(dynamic_shared());
  const int first_head = static_cast<int>(blockIdx.y) * group_heads;
  const int head = first_head + tile.head();
  const ListKeys list(a.lists, row, list_memory, &tile);
  tile.load_queries(a.in, row, first_head);
  RunningSoftmax softmax(a.in, head);
  const int column = 2 * static_cast<int>(threadIdx.x);
  float out[group_heads][2] = {};
  for (int first = 0; first < list.count(); first += tile_keys) {
    tile.load_tile(a.in, list, first);
    float shrink = 1;
    tile.p[tile.entry() * group_heads + tile.head()] = softmax.add(tile.logit(a.in.scale), shrink);
    if (tile.entry() == 0) tile.factors[tile.head()] = shrink;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < group_heads; ++h) {
      out[h][0] *= tile.factors[h];
      out[h][1] *= tile.factors[h];
    }
#pragma unroll 2
    for (int j = 0; j < tile_keys; ++j) {
      const float2 value = *reinterpret_cast<const float2*>(tile.kv + j * tile.stride + column);
#pragma unroll
      for (int h = 0; h < group_heads; ++h) {
        const float p = tile.p[j * group_heads + h];
        out[h][0] = __fmaf_rn(p, value.x, out[h][0]);
        out[h][1] = __fmaf_rn(p, value.y, out[h][1]);
      }
    }
  }
  __syncthreads();
  if (tile.entry() == 0) {
    tile.factors[tile.head()] = list.live() == 0 ? 0.0F : 1.0F / softmax.sum;
    if (head < a.in.heads) a.lse.at(row)[head] = softmax.lse();
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < group_heads; ++h) {
    if (first_head + h >= a.in.heads) break;
    T* const to = a.out.at(row, first_head + h) + column;
    narrow(out[h][0] * tile.factors[h], to[0]);
    narrow(out[h][1] * tile.factors[h], to[1]);
  }
}

/// One block for each row and group of heads.
template <class T, int dim>
__global__ void __launch_bounds__(block_threads) attend(ForwardArgument<T> a) {
  __shared__ ListKeys::Memory list_memory;
  a.rows.for_each([&](std::int64_t row) { attend_row<T, dim>(a, row, list_memory); });
}

const bool registered = register_kernel(attend<float, 576>) && register_kernel(attend<float, 512>) &&
                        register_kernel(attend<Bf16, 576>) && register_kernel(attend<Bf16, 512>);

template <class T, int dim>
void run(const NativeStream& stream, const AttentionInputs& in, const AttentionOutputs& out, ListFault* fault,
         const ChosenRows* only) {
  const ForwardArgument<T> a{attention_rows<T>(in), lists_of(in.indices, in.length, in.kv.size(0), fault),
                             rows_of<T>(out.out), rows_of<float>(out.lse), KernelRows({0, in.q.size(0)}, only)};
  const std::int64_t groups = (in.q.size(1) + group_heads - 1) / group_heads;
  launch(stream, attend<T, dim>, a, a.rows.blocks(groups), groups,
         std::max(sizeof(GroupTile<dim>), list_bytes(in.indices.size(1))));
}

}  // namespace

void sparse_mla_forward(const NativeStream& stream, const AttentionInputs& in, const AttentionOutputs& out,
                        ListFault* fault, const ChosenRows* only) {
  const bool wide = in.q.size(2) == 576;
  if (in.q.dtype() == DType::bf16) {
    wide ? run<Bf16, 576>(stream, in, out, fault, only) : run<Bf16, 512>(stream, in, out, fault, only);
  } else {
    wide ? run<float, 576>(stream, in, out, fault, only) : run<float, 512>(stream, in, out, fault, only);
  }
}

}  // namespace tandem::detail::cuda::generic

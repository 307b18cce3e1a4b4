// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/cuda/generic/attention.cuh"
#include "kernels/cuda/generic/chosen_rows.cuh"

namespace tandem::detail::cuda::generic {
namespace {

/// Entries of a list for which a block computes sums.
constexpr int slice_entries = 8 * tile_keys;

/// Writes the sums over heads, in their order, of entries [first, end) of a list, by the heads' lse.
template <class T, int dim, class Keys>
__device__ void write_sums(GroupTile<dim>& tile, const AttentionRows<T>& in, std::int64_t row, const Keys& keys,
                           const float* lse, int first, int end, float* to) {
  for (; first < end; first += tile_keys) {
    tile.load_tile(in, keys, first);
    float sum = 0;
    for (int group = 0; group < in.heads; group += group_heads) {
      tile.load_queries(in, row, group);
      const int head = group + tile.head();
      const bool counts = head < in.heads && tile.counts();
      tile.p[tile.entry() * group_heads + tile.head()] = counts ? expf(tile.logit(in.scale) - lse[head]) : 0.0F;
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < tile_keys) {
        for (int h = 0; h < group_heads; ++h) sum += tile.p[threadIdx.x * group_heads + h];
      }
    }
    const int entry = first + static_cast<int>(threadIdx.x);
    if (static_cast<int>(threadIdx.x) < tile_keys && entry < end) to[entry] = sum;
  }
}

template <class T>
struct SparseArgument {
  AttentionRows<T> in;
  Lists lists;
  Rows<const float> lse;
  KernelRows rows;
  Rows<float> sums;  ///< of rows from the first one on
};

template <class T, int dim>
__device__ void sum_list_of(const SparseArgument<T>& a, std::int64_t row, ListKeys::Memory& list_memory) {
  auto& tile = *static_cast<GroupTile<dim>*>(dynamic_shared());
  const int first = static_cast<int>(blockIdx.y) * slice_entries;
  const ListKeys list(a.lists, row, list_memory, &tile);
  const int end = min(list.count(), first + slice_entries);
  float* const to = a.sums.at(row - a.rows.first());
  for (int i = max(first, end) + static_cast<int>(threadIdx.x); i < min(a.lists.topk, first + slice_entries);
       i += block_threads) {
    to[i] = 0;
  }
  write_sums(tile, a.in, row, list, a.lse.at(row), first, end, to);
}

/// One block for each row and slice of its list.
template <class T, int dim>
__global__ void __launch_bounds__(block_threads) sum_list(SparseArgument<T> a) {
  __shared__ ListKeys::Memory list_memory;
  a.rows.for_each([&](std::int64_t row) { sum_list_of<T, dim>(a, row, list_memory); });
}

template <class T>
struct DenseArgument {
  AttentionRows<T> in;
  const int* bounds;  ///< [s, 2]
  std::int64_t first_row;
  Rows<float> sums;
  int width;
};

/// One block for each row: first the lse of all heads, then the sums.
template <class T, int dim>
__global__ void __launch_bounds__(block_threads) sum_range(DenseArgument<T> a) {
  auto& tile = *static_cast<GroupTile<dim>*>(dynamic_shared());
  float* const lse = reinterpret_cast<float*>(&tile + 1);
  const std::int64_t row = a.first_row + blockIdx.x;
  const RangeKeys keys{a.bounds[2 * row], a.bounds[2 * row + 1]};
  float* const to = a.sums.at(blockIdx.x);
  for (int i = keys.count() + static_cast<int>(threadIdx.x); i < a.width; i += block_threads) to[i] = 0;
  for (int group = 0; group < a.in.heads; group += group_heads) {
    const int head = group + tile.head();
    tile.load_queries(a.in, row, group);
    RunningSoftmax softmax(a.in, head);
    for (int first = 0; first < keys.count(); first += tile_keys) {
      tile.load_tile(a.in, keys, first);
      float shrink = 1;
      softmax.add(tile.logit(a.in.scale), shrink);
    }
    if (tile.entry() == 0 && head < a.in.heads) lse[head] = softmax.lse();
  }
  __syncthreads();
  write_sums(tile, a.in, row, keys, lse, 0, keys.count(), to);
}

const bool registered = register_kernel(sum_list<float, 576>) && register_kernel(sum_list<float, 512>) &&
                        register_kernel(sum_list<Bf16, 576>) && register_kernel(sum_list<Bf16, 512>) &&
                        register_kernel(sum_range<float, 576>) && register_kernel(sum_range<float, 512>) &&
                        register_kernel(sum_range<Bf16, 576>) && register_kernel(sum_range<Bf16, 512>);

template <class T, int dim>
void run_sparse(const NativeStream& stream, RowRange rows, const AttentionInputs& in, const Tensor& lse,
                const Tensor& head_sums, ListFault* fault, const ChosenRows* only) {
  const SparseArgument<T> a{attention_rows<T>(in), lists_of(in.indices, in.length, in.kv.size(0), fault),
                            rows_of<const float>(lse), KernelRows(rows, only), rows_of<float>(head_sums)};
  const std::int64_t slices = (in.indices.size(1) + slice_entries - 1) / slice_entries;
  launch(stream, sum_list<T, dim>, a, a.rows.blocks(slices), slices,
         std::max(sizeof(GroupTile<dim>), list_bytes(in.indices.size(1))));
}

template <class T, int dim>
void run_dense(const NativeStream& stream, RowRange rows, const Tensor& bounds, const AttentionInputs& in,
               const Tensor& head_sums) {
  const DenseArgument<T> a{attention_rows<T>(in), bounds.data_as<const int>(), rows.begin, rows_of<float>(head_sums),
                           static_cast<int>(head_sums.size(1))};
  launch(stream, sum_range<T, dim>, a, rows.size(), 1,
         sizeof(GroupTile<dim>) + static_cast<std::size_t>(in.q.size(1)) * sizeof(float));
}

}  // namespace

void sparse_head_sums(const NativeStream& stream, RowRange rows, const AttentionInputs& in, const Tensor& lse,
                      const Tensor& head_sums, ListFault* fault, const ChosenRows* only) {
  const bool wide = in.q.size(2) == 576;
  if (in.q.dtype() == DType::bf16) {
    wide ? run_sparse<Bf16, 576>(stream, rows, in, lse, head_sums, fault, only)
         : run_sparse<Bf16, 512>(stream, rows, in, lse, head_sums, fault, only);
  } else {
    wide ? run_sparse<float, 576>(stream, rows, in, lse, head_sums, fault, only)
         : run_sparse<float, 512>(stream, rows, in, lse, head_sums, fault, only);
  }
}

void dense_head_sums(const NativeStream& stream, RowRange rows, const Tensor& bounds, const AttentionInputs& in,
                     const Tensor& head_sums) {
  const bool wide = in.q.size(2) == 576;
  if (in.q.dtype() == DType::bf16) {
    wide ? run_dense<Bf16, 576>(stream, rows, bounds, in, head_sums)
         : run_dense<Bf16, 512>(stream, rows, bounds, in, head_sums);
  } else {
    wide ? run_dense<float, 576>(stream, rows, bounds, in, head_sums)
         : run_dense<float, 512>(stream, rows, bounds, in, head_sums);
  }
}

}  // namespace tandem::detail::cuda::generic

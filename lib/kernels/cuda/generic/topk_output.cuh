// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/generic/block.cuh"
#include "kernels/cuda/generic/launch.cuh"
#include "kernels/cuda/generic/topk_select.cuh"
#include "tandem/kernels.hpp"

/// Finished lists of selected keys, -1 beyond their lengths. Every thread of the block has to call.
namespace tandem::detail::cuda::generic {

struct ListOutput {
  Rows<int> indices;
  int* length;
  unsigned long long* nan_count;
  int topk;
};

inline ListOutput list_output(const TopkLists& out, std::int64_t topk) {
  return {rows_of<int>(out.indices), out.length.data_as<int>(), out.nan_count.data_as<unsigned long long>(),
          static_cast<int>(topk)};
}

/// Of a row that takes all it sees.
__device__ inline void write_range(const ListOutput& out, int row, int begin, int end) {
  int* const list = out.indices.at(row);
  for (int i = static_cast<int>(threadIdx.x); i < out.topk; i += block_threads)
    list[i] = i < end - begin ? begin + i : -1;
  if (threadIdx.x == 0) out.length[row] = end - begin;
}

/// Ascending. Their rows are put where the candidates are, each where one was read already.
__device__ inline void write_list(const ListOutput& out, int row, std::uint64_t* best, int count) {
  int* const rows = reinterpret_cast<int*>(best);
  const int padded = padded_count(count);
  for (int first = 0; first < padded; first += block_threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const int landed = i < count ? rank_key_row(best[i]) : 0x7FFFFFFF;
    __syncthreads();
    if (i < padded) rows[i] = landed;
    __syncthreads();
  }
  bitonic_sort(rows, padded);
  int* const list = out.indices.at(row);
  for (int i = static_cast<int>(threadIdx.x); i < out.topk; i += block_threads) list[i] = i < count ? rows[i] : -1;
  if (threadIdx.x == 0) out.length[row] = count;
}

/// `nans` of the whole block.
__device__ inline void add_nans(const ListOutput& out, int nans) {
  if (threadIdx.x == 0 && nans != 0) atomicAdd(out.nan_count, static_cast<unsigned long long>(nans));
}

}  // namespace tandem::detail::cuda::generic

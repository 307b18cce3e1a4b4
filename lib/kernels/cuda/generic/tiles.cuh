// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/generic/block.cuh"
#include "tandem/kernels.hpp"

/// Tiles of vectors in shared memory, as f32. Rows are four floats apart beyond their columns, so that neighbours lie
/// in different banks.
namespace tandem::detail::cuda::generic {

constexpr int tile_keys = 16;
constexpr int value_columns = static_cast<int>(value_dim);

template <int columns>
constexpr int padded_columns = columns + 4;

/// Vectors [first, first + count) of a row; zeros for those from `end` on.
template <int columns, class T>
__device__ void load_inner(const Rows<const T>& from, std::int64_t row, int first, int count, int end, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count * columns; i += block_threads) {
    const int inner = i / columns;
    const int c = i % columns;
    to[inner * padded_columns<columns> + c] = first + inner < end ? widen(from.at(row, first + inner)[c]) : 0.0F;
  }
}

/// The rows of entries [first, first + count); zeros, and key -1, for those that do not count.
template <int columns, class T, class Keys>
__device__ void load_keys(const Rows<const T>& from, const Keys& keys, int first, int count, int* key_of, float* to) {
  if (static_cast<int>(threadIdx.x) < count) {
    const int entry = first + static_cast<int>(threadIdx.x);
    key_of[threadIdx.x] = entry < keys.count() ? keys.key(entry) : -1;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * columns; i += block_threads) {
    const int key = key_of[i / columns];
    to[i / columns * padded_columns<columns> + i % columns] = key >= 0 ? widen(from.at(key)[i % columns]) : 0.0F;
  }
  __syncthreads();
}

}  // namespace tandem::detail::cuda::generic

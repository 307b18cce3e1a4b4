// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/generic/launch.cuh"

/// What the threads of a block do together. Every thread of the block has to call.
namespace tandem::detail::cuda::generic {

constexpr unsigned all_lanes = 0xFFFFFFFFU;
constexpr int block_warps = block_threads / 32;

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / 32; }

/// Combines one value of each thread, in a fixed order; every thread gets the result. `scratch` has block_warps entries
/// and may be used again after the next barrier.
template <class Value, class Combine>
__device__ Value block_reduce(Value value, Value* scratch, const Combine& combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(all_lanes, value, distance));
  }
  __syncthreads();
  if (lane() == 0) scratch[warp()] = value;
  __syncthreads();
  Value result = scratch[0];
  for (int w = 1; w < block_warps; ++w) result = combine(result, scratch[w]);
  return result;
}

template <class Value>
__device__ Value block_sum(Value value, Value* scratch) {
  return block_reduce(value, scratch, [](Value a, Value b) { return a + b; });
}

/// The power of two that is not below `count`.
__device__ inline int padded_count(int count) {
  int padded = 1;
  while (padded < count) padded *= 2;
  return padded;
}

/// Sorts `count` values in shared memory, a power of two of them, ascending.
template <class Value>
__device__ void bitonic_sort(Value* values, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < count / 2; pair += block_threads) {
        const int low = 2 * distance * (pair / distance) + pair % distance;
        const int high = low + distance;
        const bool ascending = (low & size) == 0;
        const Value a = values[low];
        const Value b = values[high];
        if ((a > b) == ascending) {
          values[low] = b;
          values[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace tandem::detail::cuda::generic

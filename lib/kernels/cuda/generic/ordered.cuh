// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/generic/lists.cuh"

/// Gradients of keys with the same bits in every run: instead of adding them by atomics as rows have them, a block owns
/// a part of the keys and goes through the rows, in their order, for what each has to add to them.
namespace tandem::detail::cuda::generic {

/// Blocks that share the keys. A key's sum does not depend on it.
constexpr int ordered_blocks = 256;

struct OwnedKeys {
  int begin, end;
};
__device__ inline OwnedKeys owned_keys(int landed_rows) {
  const auto bound = [&](unsigned block) {
    return static_cast<int>(static_cast<std::int64_t>(landed_rows) * block / gridDim.x);
  };
  return {bound(blockIdx.x), bound(blockIdx.x + 1)};
}

/// Shared memory for the owned entries of a list of K.
__host__ __device__ inline std::size_t owned_bytes(std::int64_t topk) {
  return (static_cast<std::size_t>(topk) * sizeof(std::uint16_t) + 15) / 16 * 16;
}

/// The entries of a list whose keys the block owns, in any order: they are different keys.
struct OwnedEntries {
  const ListKeys& list;
  const std::uint16_t* entries;
  int entry_count;

  __device__ int count() const { return entry_count; }
  __device__ int entry(int i) const { return entries[i]; }
  __device__ int key(int i) const { return list.key(entries[i]); }
};

/// Every thread of the block has to call; `entries` has owned_bytes, `count` is shared.
__device__ inline OwnedEntries choose(const ListKeys& list, OwnedKeys own, std::uint16_t* entries, int& count) {
  static_assert(most_topk <= 1 << 16, "entries fit 16 bits");
  __syncthreads();
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < list.count(); i += block_threads) {
    const int key = list.key(i);
    if (key >= own.begin && key < own.end) entries[atomicAdd(&count, 1)] = static_cast<std::uint16_t>(i);
  }
  __syncthreads();
  return {list, entries, count};
}

/// The same of a range.
struct OwnedRange {
  RangeKeys keys;
  int first, entry_count;

  __device__ int count() const { return entry_count; }
  __device__ int entry(int i) const { return first + i; }
  __device__ int key(int i) const { return keys.key(first + i); }
};

__device__ inline OwnedRange choose(const RangeKeys& keys, OwnedKeys own) {
  const int begin = max(keys.begin, own.begin);
  return {keys, begin - keys.begin, max(0, min(keys.end, own.end) - begin)};
}

}  // namespace tandem::detail::cuda::generic

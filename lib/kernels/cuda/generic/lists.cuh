// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/generic/block.cuh"
#include "kernels/cuda/generic/kernels.hpp"

/// The keys of a row, as a caller's list or a range gives them.
namespace tandem::detail::cuda::generic {

/// Lists of all rows, [s, K] with lengths [s].
struct Lists {
  Rows<const int> indices;
  const int* length;
  int topk;
  int landed_rows;
  ListFault* fault;
};

inline Lists lists_of(const Tensor& indices, const Tensor& length, std::int64_t landed_rows, ListFault* fault) {
  return {rows_of<const int>(indices), length.data_as<const int>(), static_cast<int>(indices.size(1)),
          static_cast<int>(landed_rows), fault};
}

/// Bytes of shared memory that ListKeys::read sorts in; free again afterwards.
inline std::size_t list_bytes(std::int64_t topk) {
  std::size_t padded = 1;
  while (padded < static_cast<std::size_t>(topk)) padded *= 2;
  return padded * sizeof(std::uint64_t);
}

/// The entries of a list that count. Entry i is key(i), or -1 if it is none: negative, no landed row, or a repetition.
class ListKeys {
 public:
  struct Memory {
    unsigned left_out[most_topk / 32];  ///< a bit for each entry
    int sums[block_warps];
  };

  /// Every thread of the block has to call; `scratch` has list_bytes.
  __device__ ListKeys(const Lists& lists, std::int64_t row, Memory& memory, void* scratch)
      : list_(lists.indices.at(row)), memory_(memory) {
    count_ = lists.length[row];
    if (count_ < 0 || count_ > lists.topk) {
      if (threadIdx.x == 0) report(lists, row, true, count_);
      count_ = 0;
    }
    for (int i = static_cast<int>(threadIdx.x); i < (count_ + 31) / 32; i += block_threads) memory_.left_out[i] = 0;
    __syncthreads();
    int live = 0;
    bool plain = true;
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += block_threads) {
      const int key = list_[i];
      const bool counts = key >= 0 && key < lists.landed_rows;
      if (key >= lists.landed_rows) report(lists, row, false, key);
      if (!counts) leave_out(i);
      live += counts ? 1 : 0;
      plain = plain && counts && (i == 0 || list_[i - 1] < key);
    }
    if (__syncthreads_and(plain ? 1 : 0) == 0) live -= leave_out_repetitions(static_cast<std::uint64_t*>(scratch));
    live_ = block_sum(live, memory_.sums);
  }

  /// Entries to look at; some may be left out.
  __device__ int count() const { return count_; }
  /// Entries that are not.
  __device__ int live() const { return live_; }
  __device__ int key(int entry) const {
    return (memory_.left_out[entry / 32] >> (entry % 32) & 1) != 0 ? -1 : list_[entry];
  }

 private:
  __device__ static void report(const Lists& lists, std::int64_t row, bool length, int value) {
    *static_cast<volatile ListFault*>(lists.fault) =
        (length ? fault_is_length : 0) | (static_cast<ListFault>(row + 1) << 32) | static_cast<unsigned>(value);
  }
  __device__ void leave_out(int entry) { atomicOr(&memory_.left_out[entry / 32], 1U << (entry % 32)); }

  /// Of equal keys the first entry stays. Returns how many this thread left out.
  __device__ int leave_out_repetitions(std::uint64_t* sorted) {
    constexpr std::uint64_t none = ~std::uint64_t{0};
    const int padded = padded_count(count_);
    for (int i = static_cast<int>(threadIdx.x); i < padded; i += block_threads) {
      const int key_here = i < count_ ? key(i) : -1;
      sorted[i] = key_here < 0 ? none : (static_cast<std::uint64_t>(key_here) << 32) | static_cast<unsigned>(i);
    }
    bitonic_sort(sorted, padded);
    int repetitions = 0;
    for (int i = static_cast<int>(threadIdx.x); i + 1 < padded; i += block_threads) {
      const std::uint64_t next = sorted[i + 1];
      if (next == none || next >> 32 != sorted[i] >> 32) continue;
      leave_out(static_cast<int>(next & 0xFFFFFFFFU));
      ++repetitions;
    }
    __syncthreads();
    return repetitions;
  }

  const int* const list_;
  Memory& memory_;
  int count_;
  int live_;
};

/// Keys [begin, end): entry i is begin + i.
struct RangeKeys {
  int begin, end;
  __device__ int count() const { return end - begin; }
  __device__ int live() const { return end - begin; }
  __device__ int key(int entry) const { return begin + entry; }
};

}  // namespace tandem::detail::cuda::generic

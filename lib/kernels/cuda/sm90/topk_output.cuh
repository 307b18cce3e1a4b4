// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "topk_list.cuh"

/// What is made of a finished list. All functions are called by all select warps.
namespace tandem::detail::sm90 {

constexpr int bitmap_rows = bitmap_words * 32;

/// The sorted output as a bitmap of the rows [begin, begin + bitmap_rows).
struct Bitmap {
  std::uint32_t* words;
  int begin;

  __device__ __forceinline__ static int words_of(int rows) {
    return min((rows + 31) / 32 + histogram_words - 1, bitmap_words) / histogram_words * histogram_words;
  }
  __device__ __forceinline__ void set_if(bool condition, std::uint64_t key) const {
    set_bit_if(condition, words, static_cast<std::uint32_t>(rank_key_row(key) - begin));
  }
};

/// Writes the rows of a bitmap of `words` words ascending to out[written...]; returns `written` with them. Ends with a
/// barrier.
__device__ __forceinline__ int write_bitmap(const Bitmap& bitmap, int words, int written, std::int32_t* out,
                                            SelectScratch& scratch, int thread) {
  forget(thread);
  for (int part = 0; part < words; part += histogram_words) {
    const int first = part + thread * bins_per_thread;
    std::uint32_t own[bins_per_thread];
    std::uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < bins_per_thread / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(bitmap.words + first)[i];
      own[4 * i] = four.x;
      own[4 * i + 1] = four.y;
      own[4 * i + 2] = four.z;
      own[4 * i + 3] = four.w;
      mine += __popc(four.x) + __popc(four.y) + __popc(four.z) + __popc(four.w);
    }
    std::int32_t* to = out + written + select_prefix(mine, scratch, thread);
#pragma unroll
    for (int i = 0; i < bins_per_thread; ++i) {
      while (own[i] != 0) {
        *to++ = bitmap.begin + (first + i) * 32 + __ffs(static_cast<int>(own[i])) - 1;
        own[i] &= own[i] - 1;
      }
    }
    for (int warp = 0; warp < select_warps; ++warp) written += static_cast<int>(scratch.warp_sum[warp]);
    select_sync();
  }
  return written;
}

/// Writes the rows of list[0, n) ascending to out. All rows lie in [begin, end).
__device__ __forceinline__ void write_ascending(const std::uint64_t* list, int n, int begin, int end, std::int32_t* out,
                                                SelectScratch& scratch, int thread) {
  forget(thread);
  int written = 0;
  for (int from = begin; from < end && written < n; from += bitmap_rows) {
    const Bitmap bitmap{scratch.bitmap, from};
    const int words = Bitmap::words_of(end - from);
    clear_words(scratch.bitmap, words, thread);
    select_sync();
    for (int first = thread; first < n; first += 8 * select_threads) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = first + i * select_threads;
        const int row = at < n ? rank_key_row(list[at]) : -1;
        const bool in = (row >= from) & (row - from < bitmap_rows);
        set_bit_if(in, scratch.bitmap, static_cast<std::uint32_t>(row - from));
      }
    }
    select_sync();
    written = write_bitmap(bitmap, words, written, out, scratch, thread);
  }
}

/// ln(sum of exp(score)) over the keys of list[0, n) that are no less than `kth`; -infinity if there are none. The sum
/// is taken in fixed point relative to the greatest score, so it does not depend on the order of the list.
__device__ __forceinline__ float log_sum_exp(const std::uint64_t* list, int n, std::uint64_t kth,
                                             SelectScratch& scratch, int thread) {
  forget(thread);
  if (thread == 0) {
    scratch.maximum = 0;
    scratch.sum = 0;
  }
  select_sync();
  std::uint32_t greatest = 0;
#pragma unroll 8
  for (int i = thread; i < n; i += select_threads) greatest = max(greatest, static_cast<std::uint32_t>(list[i] >> 32));
  greatest = __reduce_max_sync(full_warp, greatest);
  if ((thread & 31) == 0) atomicMax(&scratch.maximum, greatest);
  select_sync();
  const float top = rank_key_score(static_cast<std::uint64_t>(scratch.maximum) << 32);
  if (n == 0 || isinf(top)) {
    select_sync();
    return n == 0 ? -INFINITY : top;
  }
  unsigned long long sum = 0;
#pragma unroll 4
  for (int i = thread; i < n; i += select_threads) {
    const std::uint64_t key = list[i];
    const float part = expf(rank_key_score(key) - top) * 1099511627776.0F;  // 2^40
    sum += key >= kth ? static_cast<unsigned long long>(part) : 0;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
  if ((thread & 31) == 0) atomicAdd(&scratch.sum, sum);
  select_sync();
  const auto total = static_cast<double>(scratch.sum);
  select_sync();
  return top + static_cast<float>(log(total * 0x1p-40));
}

}  // namespace tandem::detail::sm90

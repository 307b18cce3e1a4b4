// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ptx.cuh"

/// What selecting the K best keys of a row is made of: rank keys and the workspace of the select warps.
///
/// A score and its landed row are one number, the rank key: greater means earlier in the total order (score descending,
/// row ascending). Rank keys of a row are distinct, so there are no ties to keep apart and no buffer for them.
namespace tandem::detail::sm90 {

constexpr int select_threads = 96;
constexpr int select_warps = select_threads / 32;
constexpr int select_barrier = 3;  ///< named barrier of the select warps
constexpr int bin_bits = 10;
constexpr int histogram_bins = 1 << bin_bits;
constexpr int bins_per_thread = 12;
constexpr int histogram_words =
    bins_per_thread * select_threads;  ///< some beyond the bins, so threads have equal parts
static_assert(histogram_words >= histogram_bins && bins_per_thread % 4 == 0);
constexpr int small_list = 256;  ///< candidates around the K-th that are ranked by comparing all pairs
constexpr unsigned full_warp = 0xFFFFFFFFU;

/// -0 becomes +0; -infinity stays above 0, which stands for "nothing".
__device__ __forceinline__ std::uint64_t rank_key(float score, std::int32_t row) {
  const std::uint32_t bits = __float_as_uint(score + 0.0F);
  const std::uint32_t ordered =
      bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000U);
  return (static_cast<std::uint64_t>(ordered) << 32) | ~static_cast<std::uint32_t>(row);
}
__device__ __forceinline__ float rank_key_score(std::uint64_t key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}
__device__ __forceinline__ std::int32_t rank_key_row(std::uint64_t key) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
}

/// What matrix warps compare with: a key passes if its score is greater, or equal and its row earlier. One 64-bit word,
/// so that it is read and written whole.
__device__ __forceinline__ std::uint64_t pack_threshold(float score, std::int32_t row) {
  return (static_cast<std::uint64_t>(__float_as_uint(score)) << 32) | static_cast<std::uint32_t>(row);
}
constexpr std::uint64_t no_threshold = (std::uint64_t{0xFF800000U} << 32) | 0x7FFFFFFFU;  ///< all but NaN pass

/// A row's list while it grows. Its scores are counted in bins as they come, so that the threshold rises with every
/// block, and the list is cut only when it is full.
struct RowList {
  std::uint64_t threshold;  ///< what does not exceed it cannot be among the best K; 0 until K are known
  int count;                ///< entries
  int dead;                 ///< of those, the ones in lower bins than `bin`
  int bin;                  ///< K entries lie in this bin and higher ones
  float factor, offset;     ///< of the bins; a factor of 0 means that nothing is counted
  int lay_out_at;           ///< entries with which bins are laid out
};

struct alignas(16) SelectScratch {
  alignas(16) std::uint32_t histogram[histogram_words + 4];  ///< of an exact cut
  std::uint64_t small[small_list];
  unsigned long long sum;
  std::uint64_t kth;
  alignas(16) std::uint32_t thread_low[select_threads];
  alignas(16) std::uint32_t thread_high[select_threads];
  std::uint32_t warp_low[select_warps], warp_high[select_warps], warp_sum[select_warps];
  std::uint32_t maximum;
  int bin, above, inside, kept, small_count;
};

/// Keeps the compiler from working out ahead, and holding over whole loops, what follows from the thread's number: the
/// select warps have few registers.
__device__ __forceinline__ void forget(int& thread) { asm volatile("" : "+r"(thread)); }

__device__ __forceinline__ void select_sync() { named_sync<select_barrier, select_threads>(); }

/// Whether `condition` holds for all threads of the select warps, which it synchronises.
__device__ __forceinline__ bool select_all(bool condition) {
  std::uint32_t all;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.and.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(all)
      : "r"(static_cast<unsigned>(condition)), "n"(select_barrier), "n"(select_threads)
      : "memory");
  return all != 0;
}

/// Exclusive prefix sum of one value a thread over the select warps. Ends without a barrier: `warp_sum` may be
/// written again only after one.
__device__ __forceinline__ std::uint32_t select_prefix(std::uint32_t value, SelectScratch& scratch, int thread) {
  const int lane = thread & 31;
  std::uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(full_warp, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) scratch.warp_sum[thread / 32] = sum;
  select_sync();
  std::uint32_t before = 0;
#pragma unroll
  for (int warp = 0; warp < select_warps - 1; ++warp) before += warp < thread / 32 ? scratch.warp_sum[warp] : 0;
  return before + sum - value;
}

__device__ __forceinline__ void clear_histogram(SelectScratch& scratch, int thread) {
#pragma unroll
  for (int i = 0; i < bins_per_thread / 4; ++i) {
    reinterpret_cast<uint4*>(scratch.histogram)[thread + i * select_threads] = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "topk.cuh"

/// Exact selection of the K greatest of a list that grows while it is cut: device code of the select warps.
namespace tandem::detail::sm90 {

constexpr std::uint32_t unused_bin = histogram_words;  ///< never looked at

// Spelled out because the compiler turns atomicAdd of a constant into a loop over the warp's distinct addresses.
__device__ __forceinline__ void count_in(std::uint32_t* bin) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(shared_address(bin)) : "memory");
}
__device__ __forceinline__ void count_if(bool condition, std::uint32_t* bin) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p red.shared.add.u32 [%0], 1;\n}\n" ::"r"(shared_address(bin)),
      "r"(static_cast<unsigned>(condition))
      : "memory");
}
__device__ __forceinline__ int take_slots(int* counter, int slots) {
  int before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(counter)), "r"(slots)
               : "memory");
  return before;
}

/// Finds the bin in which the `need`-th greatest of the counted keys lies: scratch.bin, how many lie in bins above it,
/// how many inside. There are at least `need`.
template <int Bins>
__device__ __forceinline__ void find_bin(const std::uint32_t* histogram, int need, SelectScratch& scratch, int thread) {
  forget(thread);
  constexpr int part = (Bins + 4 * select_threads - 1) / (4 * select_threads) * 4;  // bins of a thread
  const int top = Bins - 1 - part * thread;
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < part / 4; ++i) {
    if (top - 4 * i >= 3) {
      const uint4 four = reinterpret_cast<const uint4*>(histogram)[(top - 4 * i) / 4];
      mine += four.x + four.y + four.z + four.w;
    }
  }
  const std::uint32_t above = select_prefix(mine, scratch, thread);
  const auto wanted = static_cast<std::uint32_t>(need);
  if (above < wanted && wanted <= above + mine) {
    std::uint32_t passed = above;
    int bin = top;
    while (passed + histogram[bin] < wanted) passed += histogram[bin--];
    scratch.bin = bin;
    scratch.above = static_cast<int>(passed);
    scratch.inside = static_cast<int>(histogram[bin]);
  }
  select_sync();
}

/// Equal steps between the least and the greatest score of a list. Bins by leading bits of a float would not do: scores
/// share their exponents, or lie on both sides of 0. The mapping never decreases, so the K-th lies in one bin and what
/// is in higher ones is in. Everything is quartered so that the span cannot overflow.
struct ScoreBins {
  float offset, factor;

  __device__ __forceinline__ ScoreBins(std::uint32_t low, std::uint32_t high) {
    constexpr float most = 3.402823466e38F;
    const float from = fmaxf(rank_key_score(static_cast<std::uint64_t>(low) << 32), -most);
    const float to = fminf(rank_key_score(static_cast<std::uint64_t>(high) << 32), most);
    offset = 0.25F * fminf(from, most);
    factor = static_cast<float>(histogram_bins - 1) / (0.25F * to - offset);
    if (!(factor < most)) factor = 0;  // a single value, or too narrow to divide: all in bin 0
  }
  __device__ __forceinline__ int operator()(std::uint32_t upper_word) const {
    const float score = rank_key_score(static_cast<std::uint64_t>(upper_word) << 32);
    const int bin = __float2int_rz(__fmul_rn(__fmaf_rn(score, 0.25F, -offset), factor));
    return min(max(bin, 0), histogram_bins - 1);
  }
  /// Least upper word that falls into `bin` or a higher one. A whole warp searches, 32 places a step.
  __device__ __forceinline__ std::uint32_t first_word(int bin) const {
    constexpr std::uint32_t infinity = 0xFF800000U;
    if (bin == 0) return 1;
    if (bin == histogram_bins) return infinity + 1;
    const auto lane = threadIdx.x & 31U;
    std::uint32_t from = 0;  // falls below the bin
#pragma unroll
    for (int shift = 27; shift > -5; shift -= 5) {
      const int places = max(shift, 0);
      const std::uint32_t word = from + ((lane + 1) << places);
      const bool reached = word <= from || word > infinity || (*this)(word) >= bin;  // or beyond all scores
      const unsigned below = __popc(~__ballot_sync(full_warp, reached));
      from += below << places;
    }
    return from + 1;
  }
};

/// Appends a lane's chosen keys to the kept part of the list.
template <int Count>
__device__ __forceinline__ void keep_those(const bool (&keep)[Count], const std::uint64_t (&keys)[Count],
                                           std::uint64_t* list, SelectScratch& scratch, int lane) {
  int mine = 0;
#pragma unroll
  for (int i = 0; i < Count; ++i) mine += keep[i] ? 1 : 0;
  int sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(full_warp, sum, step);
    if (lane >= step) sum += other;
  }
  int at = 0;
  if (lane == 31) at = take_slots(&scratch.kept, sum);
  std::uint64_t* to = list + __shfl_sync(full_warp, at, 31) + sum - mine;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    store_if(keep[i], to, keys[i]);
    to += keep[i] ? 1 : 0;
  }
}

/// Least and greatest of one upper word a thread, over the select warps. Ends without a barrier.
__device__ __forceinline__ ScoreBins common_bins(std::uint32_t low, std::uint32_t high, SelectScratch& scratch,
                                                 int thread) {
  low = __reduce_min_sync(full_warp, low);
  high = __reduce_max_sync(full_warp, high);
  if ((thread & 31) == 0) {
    scratch.warp_low[thread / 32] = low;
    scratch.warp_high[thread / 32] = high;
  }
  select_sync();
#pragma unroll
  for (int warp = 0; warp < select_warps; ++warp) {
    low = min(low, scratch.warp_low[warp]);
    high = max(high, scratch.warp_high[warp]);
  }
  return ScoreBins(low, high);
}

/// Cuts the list, of more than k entries, to its k greatest, in no particular order, and raises the threshold to the
/// k-th. Bins do not matter here, so it works for scores of any kind. All select warps, which have synchronised after
/// the list was written; afterwards it is ready.
__device__ __forceinline__ void cut_list(std::uint64_t* list, RowList& state, int k, SelectScratch& scratch,
                                         int thread) {
  forget(thread);
  const int lane = thread & 31;
  const int n = state.count;
  const auto* upper_words = reinterpret_cast<const std::uint32_t*>(list) + 1;
  constexpr int words = 12;
  std::uint32_t low = ~0U, high = 0;
  for (int first = thread; first < n; first += select_threads * words) {
#pragma unroll
    for (int i = 0; i < words; ++i) {
      const std::uint32_t word = upper_words[2 * min(first + i * select_threads, n - 1)];
      low = min(low, word);
      high = max(high, word);
    }
  }
  const ScoreBins bins = common_bins(low, high, scratch, thread);
  clear_histogram(scratch, thread);
  if (thread == 0) {
    scratch.kept = 0;
    scratch.small_count = 0;
  }
  select_sync();
  for (int first = thread; first < n; first += select_threads * words) {
    std::uint32_t word[words];
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = upper_words[2 * min(first + i * select_threads, n - 1)];
#pragma unroll
    for (int i = 0; i < words; ++i) {
      word[i] = first + i * select_threads < n ? static_cast<std::uint32_t>(bins(word[i])) : unused_bin;
    }
#pragma unroll
    for (int i = 0; i < words; ++i) count_in(&scratch.histogram[word[i]]);
  }
  select_sync();
  find_bin<histogram_words>(scratch.histogram, k, scratch, thread);
  int need = k - scratch.above;
  // Rank keys of the bin: [base, beyond).
  const int bin = scratch.bin;
  std::uint64_t base = static_cast<std::uint64_t>(bins.first_word(bin)) << 32;
  std::uint64_t beyond = static_cast<std::uint64_t>(bins.first_word(bin + 1)) << 32;
  // A crowded bin is divided again, down to single rank keys: equal scores, or a range stretched by outliers.
  while (scratch.inside > small_list) {
    const int shift = max(64 - __clzll(static_cast<long long>(beyond - base - 1)) - bin_bits, 0);
    select_sync();
    clear_histogram(scratch, thread);
    select_sync();
    for (int first = thread; first < n; first += select_threads * 4) {
      std::uint64_t keys[4];
      std::uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) keys[i] = list[min(first + i * select_threads, n - 1)];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool in = (first + i * select_threads < n) & (keys[i] >= base) & (keys[i] < beyond);
        word[i] = in ? static_cast<std::uint32_t>((keys[i] - base) >> shift) : unused_bin;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) count_in(&scratch.histogram[word[i]]);
    }
    select_sync();
    find_bin<histogram_words>(scratch.histogram, need, scratch, thread);
    need -= scratch.above;
    base += static_cast<std::uint64_t>(scratch.bin) << shift;
    beyond = min(beyond, base + (std::uint64_t{1} << shift));
  }
  // Everything of a round is in registers before anything is written, and what is kept so far is never more than what
  // has been read: so the list can be cut in place.
  constexpr int unroll = 8;
  for (int begin = thread; begin - thread < n; begin += select_threads * unroll) {
    std::uint64_t keys[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) keys[i] = list[min(begin + i * select_threads, n - 1)];
    if (begin + (unroll - 1) * select_threads >= n) {
#pragma unroll
      for (int i = 0; i < unroll; ++i) keys[i] = begin + i * select_threads < n ? keys[i] : 0;
    }
    select_sync();
    int mine = 0, inside = 0;
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      mine += keys[i] >= beyond ? 1 : 0;
      inside += keys[i] >= base ? 1 : 0;
    }
    inside -= mine;
    if (__any_sync(full_warp, inside != 0)) {
      int slot = take_slots(&scratch.small_count, inside);
#pragma unroll
      for (int i = 0; i < unroll; ++i) {
        const bool in = (keys[i] >= base) & (keys[i] < beyond);
        if (in) scratch.small[slot] = keys[i];
        slot += in ? 1 : 0;
      }
    }
    bool keep[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) keep[i] = keys[i] >= beyond;
    keep_those(keep, keys, list, scratch, lane);
  }
  select_sync();
  const int inside = scratch.small_count;
  for (int i = thread; i < inside; i += select_threads) {
    const std::uint64_t key = scratch.small[i];
    int rank = 0;
#pragma unroll 8
    for (int j = 0; j < inside; ++j) rank += scratch.small[j] > key ? 1 : 0;
    if (rank < need) list[k - need + rank] = key;
    if (rank == need - 1) {
      state.threshold = key;
      state.count = k;
      state.factor = 0.0F;  // as if nothing had been counted
      state.bin = 0;
      state.dead = 0;
      state.lay_out_at = 0;
    }
  }
  select_sync();
}

/// The threshold of a list that was restored: its least rank key if it has k entries. All select warps.
__device__ __forceinline__ void restore_threshold(const std::uint64_t* list, RowList& state, int k,
                                                  SelectScratch& scratch, int thread) {
  const int n = state.count;
  if (n != k) return;
  std::uint64_t least = ~std::uint64_t{0};
  for (int i = thread; i < n; i += select_threads) least = min(least, list[i]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    least = min(least, static_cast<std::uint64_t>(__shfl_xor_sync(full_warp, least, step)));
  }
  if ((thread & 31) == 0) scratch.small[thread / 32] = least;
  select_sync();
  if (thread == 0) {
    for (int warp = 0; warp < select_warps; ++warp) least = min(least, scratch.small[warp]);
    state.threshold = least;
  }
  select_sync();
}

}  // namespace tandem::detail::sm90

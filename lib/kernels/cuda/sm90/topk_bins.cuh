// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "topk_list.cuh"

/// Counts of a row's scores in equal bins, kept while its list grows. What K entries reach is then known at any time,
/// to a bin, without looking at the list again: the threshold rises after every block, and few entries come.
namespace tandem::detail::sm90 {

/// Entries that a list should have before its bins are laid out.
__device__ __forceinline__ int enough_for_bins(int k) { return max(k + k / 2, 2 * select_threads); }

template <int Bins>
__device__ __forceinline__ int bin_of(float score, float factor, float offset) {
  return min(max(__float2int_rz(__fmaf_rn(score, factor, offset)), 0), Bins - 1);
}
template <int Bins>
__device__ __forceinline__ int bin_of(std::uint64_t key, float factor, float offset) {
  return bin_of<Bins>(rank_key_score(key), factor, offset);
}

/// Appends the rank keys of a block's segments that may be among the best K to the rows' lists, and counts them. All
/// select warps, three threads a segment: global memory answers slowly beside the matrix products, so everything is
/// asked for at once. Afterwards the warps must synchronise.
template <int Rows, int Bins>
__device__ __forceinline__ void append_segments(const std::uint64_t* segments, int segment,
                                                const std::uint16_t* lengths, std::uint64_t* lists, int capacity,
                                                RowList* rows, std::uint32_t (*histograms)[Bins], int thread) {
  constexpr int unroll = 8, sharers = 3, segments_of_row = 8;
  const int part = thread % sharers;
  for (int at = thread / sharers; at < Rows * segments_of_row; at += select_threads / sharers) {
    const int row = at / segments_of_row;
    const int length = lengths[at];
    const std::uint64_t threshold = rows[row].threshold;
    const float factor = rows[row].factor, offset = rows[row].offset;
    const int least = rows[row].bin;
    const std::uint64_t* from = segments + at * segment;
    for (int first = part; first < length; first += sharers * unroll) {
      std::uint64_t key[unroll];
#pragma unroll
      for (int i = 0; i < unroll; ++i) key[i] = first + sharers * i < length ? from[first + sharers * i] : 0;
      unsigned pass = 0;
#pragma unroll
      for (int i = 0; i < unroll; ++i) {
        const int bin = bin_of<Bins>(key[i], factor, offset);
        const bool in = (key[i] > threshold) & (bin >= least);
        pass |= in ? 1U << i : 0U;
        count_if(in & (factor > 0), &histograms[row][bin]);
      }
      std::uint64_t* to =
          lists + static_cast<std::int64_t>(row) * capacity + take_slots(&rows[row].count, __popc(pass));
#pragma unroll
      for (int i = 0; i < unroll; ++i) {
        const unsigned in = pass >> i & 1U;
        store_if(in != 0, to, key[i]);
        to += in;
      }
    }
  }
}

/// Raises the threshold to the lower end of the row's bin, less some: what rounding makes of that is in a lower bin, so
/// everything that is counted in this one exceeds it. One thread.
template <int Bins>
__device__ __forceinline__ void threshold_from_bin(RowList& row) {
  const float factor = row.factor, offset = row.offset;
  const int bin = row.bin;
  const float width = 1.0F / factor;
  float least = __fmaf_rn(-0.02F, width, (static_cast<float>(bin) - offset) * width);
  const float down = fmaxf(0.05F * width, fabsf(least) * 0x1p-22F);
  for (int i = 0; i < 16 && bin_of<Bins>(least, factor, offset) >= bin; ++i) least -= down;
  if (bin_of<Bins>(least, factor, offset) < bin) row.threshold = max(row.threshold, rank_key(least, 0));
}

/// Lays out a row's bins by what its list has, and counts that. The lowest scores and the highest matter little: those
/// beyond the outer bins are counted in them, so outliers do not stretch the bins. All select warps; ends with a
/// barrier.
template <int Bins>
__device__ __forceinline__ void lay_out_bins(const std::uint64_t* list, RowList& row, std::uint32_t* histogram, int k,
                                             SelectScratch& scratch, int thread) {
  forget(thread);
  const int n = row.count;
  const auto* words = reinterpret_cast<const std::uint32_t*>(list) + 1;
  constexpr int batch = 16;
  // Least and greatest of each thread's share of a sample.
  const int stride = (n + select_threads * batch - 1) / (select_threads * batch);
  std::uint32_t low = ~0U, high = 0;
  std::uint32_t sample[batch];
#pragma unroll
  for (int i = 0; i < batch; ++i) sample[i] = words[2 * min((thread + i * select_threads) * stride, n - 1)];
#pragma unroll
  for (int i = 0; i < batch; ++i) {
    low = min(low, sample[i]);
    high = max(high, sample[i]);
  }
  scratch.thread_low[thread] = low;
  scratch.thread_high[thread] = high;
  for (int i = thread; i < Bins; i += select_threads) histogram[i] = 0;
  select_sync();
  int lower = 0, higher = 0;
#pragma unroll 4
  for (int i = 0; i < select_threads; i += 4) {
    const uint4 lows = reinterpret_cast<const uint4*>(scratch.thread_low)[i / 4];
    const uint4 highs = reinterpret_cast<const uint4*>(scratch.thread_high)[i / 4];
    const std::uint32_t other_low[4] = {lows.x, lows.y, lows.z, lows.w};
    const std::uint32_t other_high[4] = {highs.x, highs.y, highs.z, highs.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      lower += (other_low[j] < low) | ((other_low[j] == low) & (i + j < thread)) ? 1 : 0;
      higher += (other_high[j] > high) | ((other_high[j] == high) & (i + j < thread)) ? 1 : 0;
    }
  }
  if (lower == (n >= 8 * select_threads ? select_threads / 2 : 0)) scratch.warp_low[0] = low;
  if (higher == select_threads / 8) scratch.warp_high[0] = high;
  select_sync();
  const float from = rank_key_score(static_cast<std::uint64_t>(scratch.warp_low[0]) << 32);
  const float to = rank_key_score(static_cast<std::uint64_t>(scratch.warp_high[0]) << 32);
  float factor = static_cast<float>(Bins) * 0.8F / (to - from);
  const float offset = -from * factor;
  if (!(factor > 0.0F && factor < INFINITY && fabsf(offset) < INFINITY)) factor = 0.0F;  // nothing to divide
  if (factor > 0.0F) {
    for (int first = thread; first < n; first += select_threads * batch) {
      std::uint32_t word[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) word[i] = words[2 * min(first + i * select_threads, n - 1)];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int bin = bin_of<Bins>(static_cast<std::uint64_t>(word[i]) << 32, factor, offset);
        count_if(first + i * select_threads < n, &histogram[bin]);
      }
    }
  }
  select_sync();
  int bin = 0, dead = 0;
  if (factor > 0.0F && n >= k) {
    find_bin<Bins>(histogram, k, scratch, thread);
    bin = scratch.bin;
    dead = n - scratch.above - scratch.inside;
  }
  if (thread == 0) {
    row.factor = factor;
    row.offset = offset;
    row.bin = bin;
    row.dead = dead;
    row.lay_out_at = 1 << 30;  // not again before the list was cut
    if (bin > 0) threshold_from_bin<Bins>(row);
  }
  select_sync();
}

/// Raises a row's threshold to the lower end of the highest bin that K entries reach; true if it rose. One thread: rows
/// side by side, and nothing is shuffled, for what goes through shared memory's pipe is slow beside the products.
template <int Bins>
__device__ __forceinline__ bool raise_threshold(RowList& row, const std::uint32_t* histogram, int k) {
  constexpr int step = 16;
  const float factor = row.factor;
  const int before = row.bin;
  int bin = before, dead = row.dead, live = row.count - dead;
  if (!(factor > 0.0F) || live < k) return false;
  for (bool more = true; more;) {
    const int base = min(bin & ~3, Bins - step);
    uint4 fours[step / 4];
#pragma unroll
    for (int i = 0; i < step / 4; ++i) fours[i] = reinterpret_cast<const uint4*>(histogram + base)[i];
#pragma unroll
    for (int i = 0; i < step; ++i) {
      const uint4& four = fours[i / 4];
      const auto count = static_cast<int>(i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w);
      const int inside = base + i < bin ? 0 : count;
      more = more & (live - inside >= k) & (base + i < Bins - 1);
      live -= more ? inside : 0;
      dead += more ? inside : 0;
      bin = more ? max(bin, base + i + 1) : bin;
    }
  }
  if (bin == before) return false;
  row.bin = bin;
  row.dead = dead;
  threshold_from_bin<Bins>(row);
  return true;
}

/// Leaves only the entries of the row's bin and higher ones. All select warps; ends with a barrier.
template <int Bins>
__device__ __forceinline__ void drop_dead(std::uint64_t* list, RowList& row, SelectScratch& scratch, int thread) {
  forget(thread);
  const int n = row.count, least = row.bin;
  const float factor = row.factor, offset = row.offset;
  if (thread == 0) scratch.kept = 0;
  constexpr int unroll = 8;
  for (int begin = thread; begin - thread < n; begin += select_threads * unroll) {
    std::uint64_t keys[unroll];
    bool keep[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) keys[i] = list[min(begin + i * select_threads, n - 1)];
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      keep[i] = (begin + i * select_threads < n) & (bin_of<Bins>(keys[i], factor, offset) >= least);
    }
    select_sync();  // all is read before anything is written, and no more is kept than was read
    keep_those(keep, keys, list, scratch, thread & 31);
  }
  select_sync();
  if (thread == 0) {
    row.count = scratch.kept;
    row.dead = 0;
    if (Bins < 512) {  // the next ones are narrower
      row.factor = 0.0F;
      row.bin = 0;
      row.lay_out_at = 0;
    }
  }
  select_sync();
}

/// Where the best of a finished row go, in no particular order.
struct BestKeys {
  std::int32_t* rows;  ///< null: nowhere
  float* scores;       ///< or null

  __device__ __forceinline__ void put(int at, std::uint64_t key) const {
    if (rows != nullptr) rows[at] = rank_key_row(key);
    if (scores != nullptr) scores[at] = rank_key_score(key);
  }
};

/// Puts the best K entries of a row whose bin has no more than small_list, and finds the K-th rank key: scratch.kth.
/// All select warps; ends with a barrier.
template <int Bins>
__device__ __forceinline__ void put_best(std::uint64_t* list, const RowList& row, const std::uint32_t* histogram, int k,
                                         const BestKeys& best, SelectScratch& scratch, int thread) {
  forget(thread);
  const int n = row.count, bin = row.bin;
  const float factor = row.factor, offset = row.offset;
  const int above = n - row.dead - static_cast<int>(histogram[bin]);
  if (thread == 0) {
    scratch.kept = 0;
    scratch.small_count = 0;
    if (n % 2 != 0) list[n] = 0;  // read with the last entry
  }
  select_sync();
  constexpr int unroll = 4;
  for (int first = 2 * thread; first < n; first += 2 * select_threads * unroll) {
    ulonglong2 two[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      const int at = min(first + 2 * i * select_threads, (n - 1) & ~1);
      two[i] = *reinterpret_cast<const ulonglong2*>(list + at);
    }
    unsigned in = 0, near = 0;
#pragma unroll
    for (int i = 0; i < 2 * unroll; ++i) {
      const int at = first + 2 * (i / 2) * select_threads + i % 2;
      const std::uint64_t key = i % 2 == 0 ? two[i / 2].x : two[i / 2].y;
      const int its = at < n ? bin_of<Bins>(key, factor, offset) : -1;
      in |= its > bin ? 1U << i : 0U;
      near |= its == bin ? 1U << i : 0U;
    }
    int to = take_slots(&scratch.kept, __popc(in));
#pragma unroll
    for (int i = 0; i < 2 * unroll; ++i) {
      if ((in >> i & 1U) != 0) best.put(to++, i % 2 == 0 ? two[i / 2].x : two[i / 2].y);
    }
    if (near != 0) {
#pragma unroll
      for (int i = 0; i < 2 * unroll; ++i) {
        if ((near >> i & 1U) != 0) {
          scratch.small[take_slots(&scratch.small_count, 1)] = i % 2 == 0 ? two[i / 2].x : two[i / 2].y;
        }
      }
    }
  }
  select_sync();
  const int inside = scratch.small_count;
  for (int i = thread; i < inside; i += select_threads) {
    const std::uint64_t key = scratch.small[i];
    int rank = 0;
#pragma unroll 8
    for (int j = 0; j < inside; ++j) rank += scratch.small[j] > key ? 1 : 0;
    if (above + rank < k) best.put(above + rank, key);
    if (above + rank == k - 1) scratch.kth = key;
  }
  select_sync();
}

}  // namespace tandem::detail::sm90

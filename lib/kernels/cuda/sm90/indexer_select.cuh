// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_shared.cuh"
#include "topk_bins.cuh"
#include "topk_output.cuh"

/// The select warps: lists of the rows of a query tile, from blocks of candidates to the best K.
namespace tandem::detail::sm90 {

template <IndexerDtype Dtype, int Heads>
struct SelectRole {
  using Traits = OperandTraits<Dtype>;
  using Shared = IndexerShared<Dtype, Heads>;
  static constexpr int rows = Shared::rows, bins = Shared::bins, block_buffers = Shared::block_buffers,
                       block_keys = Shared::block_keys;

  /// Tiles take turns with two sets of lists; `number` is the tile's.
  static __device__ __forceinline__ std::uint64_t* list_of(const IndexerParams& p, int number, int row) {
    return p.lists + (static_cast<std::int64_t>(blockIdx.x) * (2 * rows) + number % 2 * rows + row) * p.list_capacity;
  }

  static __device__ __forceinline__ void publish_threshold(Shared& s, int number, int row) {
    const std::uint64_t key = s.lists[number % 2][row].threshold;
    *reinterpret_cast<volatile std::uint64_t*>(&s.thresholds[number % threshold_slots][row]) =
        pack_threshold(rank_key_score(key), rank_key_row(key));
  }

  /// Lists of a new query tile: empty, or the state that an earlier step left.
  static __device__ __forceinline__ void start_tile(const IndexerParams& p, Shared& s, int4 tile, int thread) {
    if (thread < rows) {
      const int kept = !p.first && thread < tile.y ? p.state_length[tile.x + thread] : 0;
      RowList& list = s.lists[tile.w % 2][thread];
      list.threshold = 0;
      list.count = kept;
      list.dead = 0;
      list.bin = 0;
      list.factor = 0.0F;
      list.offset = 0.0F;
      list.lay_out_at = kept == p.topk ? 0 : enough_for_bins(p.topk);
    }
    select_sync();
    if (p.first) return;
    for (int row = 0; row < tile.y; ++row) {
      const int n = s.lists[tile.w % 2][row].count;
      if (n == 0) continue;
      const std::int64_t from = static_cast<std::int64_t>(tile.x + row) * p.topk;
      std::uint64_t* list = list_of(p, tile.w, row);
      for (int i = thread; i < n; i += select_threads) {
        list[i] = rank_key(p.state_scores[from + i], p.state_indices[from + i]);
      }
      select_sync();
      restore_threshold(list, s.lists[tile.w % 2][row], p.topk, s.select, thread);
      if (n == p.topk && thread == 0) publish_threshold(s, tile.w, row);
    }
  }

  /// What happens to a row's list after a block that is not the last: it is cut if it is full, by what the bins know
  /// or, where scores crowd, exactly, and its bins are laid out when there is enough to go by.
  static __device__ __forceinline__ void tend_row(const IndexerParams& p, Shared& s, int4 tile, int row, int thread) {
    RowList& state = s.lists[tile.w % 2][row];
    std::uint64_t* list = list_of(p, tile.w, row);
    if (state.count + block_keys > p.list_capacity) {
      const bool crowded = state.count - state.dead > p.topk + (p.list_capacity - block_keys - p.topk) / 2;
      if (!crowded) drop_dead<bins>(list, state, s.select, thread);
      if (crowded) {
        cut_list(list, state, p.topk, s.select, thread);
        if (thread == 0) publish_threshold(s, tile.w, row);
      }
    }
    if (state.factor != 0.0F || state.count < state.lay_out_at) return;
    select_sync();
    lay_out_bins<bins>(list, state, s.histograms[tile.w % 2][row], p.topk, s.select, thread);
    if (thread == 0 && state.threshold != 0) publish_threshold(s, tile.w, row);
    select_sync();
  }

  /// Raises a row's threshold by its bins. One thread.
  static __device__ __forceinline__ void raise(const IndexerParams& p, Shared& s, int4 tile, int row) {
    if (raise_threshold<bins>(s.lists[tile.w % 2][row], s.histograms[tile.w % 2][row], p.topk)) {
      publish_threshold(s, tile.w, row);
    }
  }

  static __device__ __forceinline__ bool needs_tending(const IndexerParams& p, const RowList& state) {
    return state.count + block_keys > p.list_capacity || (state.factor == 0.0F && state.count >= state.lay_out_at);
  }

  /// Whether the bins say what the best K of a list with more are, but for a few.
  static __device__ __forceinline__ bool counted(const Shared& s, int4 tile, int slot) {
    const RowList& state = s.lists[tile.w % 2][slot];
    return state.factor > 0.0F && s.histograms[tile.w % 2][slot][state.bin] <= small_list;
  }

  /// A row's best K, in no particular order: sort_lists_kernel puts them in theirs.
  static __device__ __forceinline__ void finish_row(const IndexerParams& p, Shared& s, int4 tile, int slot,
                                                    int thread) {
    const int row = local_row(p, tile.x + slot);
    const RowBounds bounds = bounds_of(p, row);
    if (!needs_scores(p, bounds)) return;
    std::uint64_t* list = list_of(p, tile.w, slot);
    RowList& state = s.lists[tile.w % 2][slot];
    if (state.count > p.topk && !counted(s, tile, slot)) cut_list(list, state, p.topk, s.select, thread);
    const int n = min(state.count, p.topk);
    const bool listed = p.last && !takes_all(p, bounds);
    const std::int64_t kept = static_cast<std::int64_t>(tile.x + slot) * p.topk;
    BestKeys best{nullptr, nullptr};
    if (listed) best.rows = p.indices + static_cast<std::int64_t>(row) * p.topk;
    if (!p.last) best = {p.state_indices + kept, p.state_scores + kept};
    if (thread == 0) s.select.kth = 0;
    select_sync();
    if (state.count == n) {
#pragma unroll 8
      for (int i = thread; i < n; i += select_threads) best.put(i, list[i]);
    } else {
      put_best<bins>(list, state, s.histograms[tile.w % 2][slot], p.topk, best, s.select, thread);
    }
    if (thread == 0) {
      if (listed) p.length[row] = n;
      if (!p.last) p.state_length[tile.x + slot] = n;
    }
    if (p.last && p.index_lse != nullptr) {
      const float lse = log_sum_exp(list, state.count, s.select.kth, s.select, thread);
      if (thread == 0) p.index_lse[row] = lse;
    }
    select_sync();
  }

  /// For tests: some blocks take long, so thresholds are old.
  static __device__ __forceinline__ void stress_pause([[maybe_unused]] std::uint32_t number) {
#ifdef TANDEM_INDEXER_STRESS
    const std::uint32_t random = (number * 2654435761U + blockIdx.x * 40503U) >> 16;
    if (random % 4 == 0) __nanosleep(random % 32768);
#endif
  }

  static __device__ __forceinline__ void run(const IndexerParams& p, Shared& s) {
    // Rows of the tile before are finished one by one, while there is no block to take; not before the new tile's first
    // blocks, which are large and after which thresholds rise.
    int unfinished = 0, taken = 0;
    for (unsigned block = 0;;) {
      int thread = static_cast<int>(threadIdx.x) - 2 * 128;
      forget(thread);
      const auto buffer = static_cast<int>(block % block_buffers);
      const unsigned parity = block / block_buffers & 1U;
      const bool idle = unfinished > 0 && taken > early_blocks && !select_all(s.block_full[buffer].test(parity));
      if (!idle) s.block_full[buffer].wait(parity);
      if (idle || (unfinished > 0 && (s.handover[buffer].z & (last_of_tile | no_more_work)) != 0)) {
        finish_row(p, s, s.finishing, s.finishing.y - unfinished, thread);
        --unfinished;
        continue;
      }
      const int4 tile = s.handover[buffer];
      if ((tile.z & no_more_work) != 0) return;
      ++block;
      ++taken;
      stress_pause(block);
      if ((tile.z & first_of_tile) != 0) start_tile(p, s, tile, thread);
      append_segments<rows, bins>(p.segments + segment_start<rows>(buffer, 0, 0), segment_keys(rows),
                                  &s.lengths[buffer][0][0], list_of(p, tile.w, 0), p.list_capacity, s.lists[tile.w % 2],
                                  s.histograms[tile.w % 2], thread);
      select_sync();
      const bool final = (tile.z & last_of_tile) != 0;
      if (!final && thread == 0) s.block_empty[buffer].arrive();
      bool quiet = true;
      if (thread < tile.y) {
        raise(p, s, tile, thread);
        quiet = !needs_tending(p, s.lists[tile.w % 2][thread]);
      }
      quiet = select_all(quiet);
      if (!final) {
        if (quiet) continue;
        for (int row = 0; row < tile.y; ++row) tend_row(p, s, tile, row, thread);
        continue;
      }
      // Thresholds for the tile that is threshold_slots later: nobody reads this tile's any more.
      if (thread < rows) s.thresholds[tile.w % threshold_slots][thread] = no_threshold;
      select_sync();
      if (thread == 0) s.block_empty[buffer].arrive();
      if (thread == 0) s.finishing = tile;
      select_sync();
      unfinished = tile.y;
      taken = 0;
    }
  }
};

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_shared.cuh"
#include "topk_list.cuh"
#include "topk_output.cuh"

/// The select warps: lists of the rows of a query tile, from blocks of candidates to sorted output.
namespace tandem::detail::sm90 {

template <IndexerDtype Dtype, int Heads>
struct SelectRole {
  using Traits = OperandTraits<Dtype>;
  using Shared = IndexerShared<Dtype, Heads>;
  static constexpr int rows = Shared::rows;

  static __device__ __forceinline__ std::uint64_t* list_of(const IndexerParams& p, int row) {
    return p.lists + (static_cast<std::int64_t>(blockIdx.x) * rows + row) * p.list_capacity;
  }

  static __device__ __forceinline__ void publish_threshold(Shared& s, int number, int row, int thread) {
    if (thread == 0) {
      const std::uint64_t key = s.lists[row].threshold;
      *reinterpret_cast<volatile std::uint64_t*>(&s.thresholds[number % threshold_slots][row]) =
          pack_threshold(rank_key_score(key), rank_key_row(key));
    }
  }

  /// Lists of a new query tile: empty, or the state that an earlier step left.
  static __device__ __forceinline__ void start_tile(const IndexerParams& p, Shared& s, int4 tile, int thread) {
    if (thread < rows) {
      const int kept = !p.first && thread < tile.y ? p.state_length[tile.x + thread] : 0;
      s.lists[thread].threshold = 0;
      s.lists[thread].count = kept;
    }
    select_sync();
    if (p.first) return;
    for (int row = 0; row < tile.y; ++row) {
      const int n = s.lists[row].count;
      if (n == 0) continue;
      const std::int64_t from = static_cast<std::int64_t>(tile.x + row) * p.topk;
      std::uint64_t* list = list_of(p, row);
      for (int i = thread; i < n; i += select_threads) {
        list[i] = rank_key(p.state_scores[from + i], p.state_indices[from + i]);
      }
      select_sync();
      restore_threshold(list, s.lists[row], p.topk, s.select, thread);
      if (n == p.topk) publish_threshold(s, tile.w, row, thread);
    }
  }

  static __device__ __forceinline__ void finish_tile(const IndexerParams& p, Shared& s, int4 tile, int thread) {
    for (int slot = 0; slot < tile.y; ++slot) {
      const int row = local_row(p, tile.x + slot);
      const RowBounds bounds = bounds_of(p, row);
      std::uint64_t* list = list_of(p, slot);
      const int n = s.lists[slot].count;
      if (p.last) {
        if (!takes_all(p, bounds)) {
          write_ascending(list, n, bounds.begin, bounds.end, p.indices + static_cast<std::int64_t>(row) * p.topk,
                          p.topk, s.select, thread);
          if (thread == 0) p.length[row] = n;
        }
        if (p.index_lse != nullptr && needs_scores(p, bounds)) {
          const float lse = log_sum_exp(list, n, s.select, thread);
          if (thread == 0) p.index_lse[row] = lse;
        }
      } else if (needs_scores(p, bounds)) {
        const std::int64_t to = static_cast<std::int64_t>(tile.x + slot) * p.topk;
        for (int i = thread; i < n; i += select_threads) {
          p.state_scores[to + i] = rank_key_score(list[i]);
          p.state_indices[to + i] = rank_key_row(list[i]);
        }
        if (thread == 0) p.state_length[tile.x + slot] = n;
      }
    }
    // For the tile that is threshold_slots later; matrix warps cannot be there before this block is handed back.
    if (thread < rows) s.thresholds[tile.w % threshold_slots][thread] = no_threshold;
    select_sync();
  }

  static __device__ __forceinline__ void run(const IndexerParams& p, Shared& s) {
    const int thread = static_cast<int>(threadIdx.x) - 2 * 128;
    int buffer = 0;
    unsigned parity = 0, stage_parity = 0;
    for (;;) {
      s.block_full[buffer].wait(parity);
      const int4 tile = s.handover[buffer];
      if ((tile.z & no_more_work) != 0) return;
      if ((tile.z & first_of_tile) != 0) start_tile(p, s, tile, thread);
      append_segments<rows>(p.segments + segment_start<rows>(buffer, 0, 0), segment_keys, &s.lengths[buffer][0][0],
                            list_of(p, 0), p.list_capacity, s.lists, thread);
      select_sync();
      const bool final = (tile.z & last_of_tile) != 0;
      if (!final && thread == 0) s.block_empty[buffer].arrive();
      for (int row = 0; row < tile.y; ++row) {
        // Not all rows at once: a long pause would fill the block buffers.
        const int stagger = (p.list_capacity - block_keys - p.topk) / 8;
        const int count = s.lists[row].count;
        const bool full = count + block_keys > p.list_capacity - (row % 4) * stagger;
        if (!full && !(final && count > p.topk)) continue;
        std::uint64_t* list = list_of(p, row);
        const std::uint64_t* source = list;
        if (count <= staged_entries) source = stage_list(list, count, s.select, stage_parity, thread);
        const bool rough = !final && p.topk >= 512 && cut_roughly(source, list, s.lists[row], p.topk, s.select, thread);
        if (!rough) cut_list(source, list, s.lists[row], p.topk, s.select, thread);
        publish_threshold(s, tile.w, row, thread);
      }
      select_sync();
      if (final) {
        finish_tile(p, s, tile, thread);
        if (thread == 0) s.block_empty[buffer].arrive();
      }
      if (++buffer == block_buffers) {
        buffer = 0;
        parity ^= 1;
      }
    }
  }
};

}  // namespace tandem::detail::sm90

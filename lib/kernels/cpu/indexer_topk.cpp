// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/cpu/context.hpp"
#include "kernels/cpu/index_scores.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/topk_lists.hpp"
#include "kernels/cpu/topk_select.hpp"

namespace tandem::detail::cpu {
namespace {

struct StepRow {
  std::int64_t row = 0;   ///< local row
  std::int64_t slot = 0;  ///< its place among the rows of the step: where its state is
  std::int64_t begin = 0, end = 0;
};

void write_state(const StepRow& row, std::span<const std::uint64_t> best, const TopkState& state) {
  float* scores = entry<float>(state.scores, row.slot);
  std::int32_t* indices = entry<std::int32_t>(state.indices, row.slot);
  for (std::size_t i = 0; i < best.size(); ++i) {
    scores[i] = rank_key_score(best[i]);
    indices[i] = rank_key_row(best[i]);
  }
  *entry<std::int32_t>(state.length, row.slot) = static_cast<std::int32_t>(best.size());
}

/// The rows of the step that must be scored. Those that take all they see are finished here.
std::vector<StepRow> rows_to_score(const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                                   const TopkLists& out) {
  std::vector<StepRow> scored;
  std::int64_t slot = 0;
  for (const RowRange& range : step.rows) {
    for (std::int64_t t = range.begin; t < range.end; ++t, ++slot) {
      const auto i = static_cast<std::size_t>(t);
      const StepRow row{t, slot, in.key_begin[i], in.key_end[i]};
      if (row.end - row.begin > in.topk) {
        scored.push_back(row);
      } else if (step.last) {
        write_range(row.row, {row.begin, row.end}, out);
      } else {
        *entry<std::int32_t>(state.length, slot) = 0;
      }
    }
  }
  return scored;
}

/// One thread's memory, and what it does with a tile of rows: all keys of the step pass by once, 64 at a time.
class TopkWorker {
 public:
  TopkWorker(const Context& context, const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
             const TopkLists& out)
      : step_(step),
        in_(in),
        state_(state),
        out_(out),
        heads_(in.index_q.size(1)),
        queries_(context.micro, in.index_q),
        keys_(context.micro, in.index_k),
        scorer_(context.micro, in),
        key_rows_(static_cast<std::size_t>(score_tile_keys * index_dim)) {}

  void run(std::span<const StepRow> rows) {
    load_queries(rows);
    start_selection(rows);
    RowRange seen{rows[0].begin, rows[0].end};
    for (const StepRow& row : rows) {
      seen.begin = std::min(seen.begin, row.begin);
      seen.end = std::max(seen.end, row.end);
    }
    for (const RowRange& range : step_.keys) {
      const std::int64_t end = std::min(range.end, seen.end);
      for (std::int64_t key = std::max(range.begin, seen.begin); key < end; key += score_tile_keys) {
        score_tile(rows, {key, std::min(key + score_tile_keys, end)});
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto best = selectors_[i].finish();
      step_.last ? write_list(rows[i].row, best, out_) : write_state(rows[i], best, state_);
    }
  }

  std::int64_t nans() const { return nans_; }

 private:
  void load_queries(std::span<const StepRow> rows) {
    float* to = q_.floats(static_cast<std::int64_t>(rows.size()) * heads_ * index_dim);
    for (const StepRow& row : rows) {
      for (std::int64_t h = 0; h < heads_; ++h, to += index_dim) queries_.copy_row(row.row, h, to);
    }
  }

  void start_selection(std::span<const StepRow> rows) {
    const std::int64_t capacity = TopkSelector::capacity(in_.topk);
    candidates_.resize(rows.size() * static_cast<std::size_t>(capacity));
    selectors_.clear();
    for (const StepRow& row : rows) {
      auto& selector = selectors_.emplace_back(
          candidates_.data() + static_cast<std::int64_t>(selectors_.size()) * capacity, in_.topk);
      if (step_.first) continue;
      const std::int32_t kept = *entry<std::int32_t>(state_.length, row.slot);
      for (std::int32_t i = 0; i < kept; ++i) {
        selector.restore(entry<float>(state_.scores, row.slot)[i], entry<std::int32_t>(state_.indices, row.slot)[i]);
      }
    }
  }

  void load_keys(RowRange tile) {
    const float* rows[score_tile_keys];
    for (std::int64_t j = 0; j < tile.size(); ++j) {
      rows[j] = keys_.row(tile.begin + j, key_rows_.data() + j * index_dim);
    }
    scorer_.set_keys(rows, tile.size(), [&](std::int64_t j) { return tile.begin + j; });
  }

  void score_tile(std::span<const StepRow> rows, RowRange tile) {
    const auto sees = [&](const StepRow& row) { return row.begin < tile.end && tile.begin < row.end; };
    bool loaded = false;
    for (std::size_t i = 0; i < rows.size();) {
      std::size_t end = i;
      while (end < rows.size() && sees(rows[end])) ++end;
      if (end == i) {
        ++i;
        continue;
      }
      if (!loaded) load_keys(tile);
      loaded = true;
      score_rows(rows, i, end, tile);
      i = end;
    }
  }

  /// Rows [first, last), all of which see some of the tile.
  void score_rows(std::span<const StepRow> rows, std::size_t first, std::size_t last, RowRange tile) {
    const std::int64_t q_rows = static_cast<std::int64_t>(last - first) * heads_;
    float* z = z_.floats(q_rows * scorer_.stride());
    scorer_.dots(q_.floats(0) + static_cast<std::int64_t>(first) * heads_ * index_dim, q_rows, z);
    for (std::size_t i = first; i < last; ++i, z += heads_ * scorer_.stride()) {
      float scores[score_tile_keys];
      scorer_.combine(z, entry<float>(in_.index_w, rows[i].row), scores);
      const std::int64_t begin = std::max(rows[i].begin, tile.begin);
      const std::int64_t count = std::min(rows[i].end, tile.end) - begin;
      nans_ += selectors_[i].offer({scores + (begin - tile.begin), static_cast<std::size_t>(count)}, begin);
    }
  }

  const IndexerStep& step_;
  const IndexerInputs& in_;
  const TopkState& state_;
  const TopkLists& out_;
  std::int64_t heads_;
  RowReader queries_;
  RowReader keys_;
  IndexScorer scorer_;
  Scratch q_, z_;
  std::vector<float> key_rows_;
  std::vector<std::uint64_t> candidates_;
  std::vector<TopkSelector> selectors_;
  std::int64_t nans_ = 0;
};

/// Rows of a tile: enough to make up for the packing of keys, few enough that queries and candidates stay in the cache
/// and every thread has some.
std::int64_t tile_rows(std::int64_t rows, std::int64_t heads, std::int64_t topk, int threads) {
  const std::int64_t by_queries = 256 / heads;
  const std::int64_t by_candidates = (std::int64_t{1} << 18) / topk;
  const std::int64_t by_threads =
      threads == 1 ? rows : (rows + std::int64_t{4} * threads - 1) / (std::int64_t{4} * threads);
  return std::max<std::int64_t>(1, std::min({by_queries, by_candidates, by_threads}));
}

}  // namespace

void indexer_topk(const Context& context, const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                  const TopkLists& out) {
  const std::vector<StepRow> rows = rows_to_score(step, in, state, out);
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t per_tile = tile_rows(count, in.index_q.size(1), in.topk, context.pool.threads());
  const std::int64_t tiles = (count + per_tile - 1) / per_tile;
  std::atomic<std::int64_t> nans{0};
  context.pool.run(tiles, [&](TaskSource& tasks) {
    TopkWorker worker(context, step, in, state, out);
    for (std::int64_t task = 0; tasks.next(task);) {
      // Later rows see more keys: the longest first.
      const std::int64_t tile = tiles - 1 - task;
      const std::int64_t first = tile * per_tile;
      worker.run({rows.data() + first, static_cast<std::size_t>(std::min(per_tile, count - first))});
    }
    nans += worker.nans();
  });
  if (nans != 0) std::atomic_ref(*out.nan_count.data_as<std::int64_t>()) += nans.load();
}

}  // namespace tandem::detail::cpu

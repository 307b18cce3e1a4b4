// SPDX-License-Identifier: Apache-2.0
#include "unit/layout/plan_oracle.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support/random.hpp"

namespace tandem {
namespace {

using testing::Batch;
using testing::PlanOracle;

PlanOptions random_options(testing::Rng& rng) {
  PlanOptions options;
  options.chunk_tokens = testing::draw(rng, 0, 4) == 0 ? 1024 : testing::draw(rng, 1, 12);
  options.carry_rows = testing::draw(rng, 1, 12);
  options.block_rows = testing::draw(rng, 1, 9);
  options.max_runs = testing::draw(rng, 1, 4);
  return options;
}

/// The ranges' members; they must be ascending, not empty and not touching.
std::vector<std::int64_t> members(const std::vector<RowRange>& ranges) {
  std::vector<std::int64_t> all;
  for (const RowRange& r : ranges) {
    EXPECT_LT(r.begin, r.end);
    if (!all.empty()) {
      EXPECT_LT(all.back() + 1, r.begin);
    }
    for (std::int64_t i = r.begin; i < r.end; ++i) all.push_back(i);
  }
  return all;
}

/// Checks one plan against the oracle.
class PlanCheck {
 public:
  PlanCheck(const Plan& plan, const PlanOracle& oracle)
      : plan_(plan), oracle_(oracle), needed_(oracle.needed(plan.rank())), shard_(oracle.shard(plan.rank())) {}

  void rows() const {
    ASSERT_EQ(plan_.rows(), std::ssize(shard_));
    ASSERT_EQ(plan_.landed_rows(), std::ssize(needed_));
    for (std::int64_t i = 0; i < std::ssize(needed_); ++i) ASSERT_EQ(plan_.to_global(i), needed(i));
    for (std::int64_t p = 0; p < plan_.layout().total_rows(); ++p) ASSERT_EQ(plan_.to_landed(p), landed(p)) << p;
    ASSERT_EQ(std::ssize(plan_.key_begin()), plan_.rows());
    ASSERT_EQ(std::ssize(plan_.key_end()), plan_.rows());
    std::int64_t last_begin = 0;
    for (std::int64_t row = 0; row < plan_.rows(); ++row) {
      const RowRange visible = oracle_.at(position(row)).visible;
      const RowRange keys = keys_of(row);
      ASSERT_EQ(keys.size(), visible.size());
      if (!visible.empty()) {
        ASSERT_EQ(plan_.to_global(keys.begin), visible.begin);
        ASSERT_EQ(plan_.to_global(keys.end - 1), visible.end - 1);
        ASSERT_LE(last_begin, keys.begin);
        last_begin = keys.begin;
      }
      if (row > 0) {
        ASSERT_LE(keys_of(row - 1).end, keys.end);
      }
    }
  }

  void chunks() const {
    ASSERT_EQ(plan_.chunks().size(), oracle_.chunks().size());
    std::map<int, std::int64_t> count;
    for (std::size_t i = 0; i < plan_.chunks().size(); ++i) {
      const Chunk& a = plan_.chunks()[i];
      const Chunk& e = oracle_.chunks()[i];
      ASSERT_EQ(std::tie(a.id, a.owner, a.first_row, a.rows), std::tie(e.id, e.owner, e.first_row, e.rows));
      ++count[a.owner];
    }
    for (int r = 0; r < plan_.ranks(); ++r) {
      ASSERT_EQ(std::ssize(plan_.chunks_of(r)), count[r]);
      for (const Chunk& c : plan_.chunks_of(r)) ASSERT_EQ(c.owner, r);
    }
  }

  void transfers() const {
    const auto arrivals = oracle_.arrivals(plan_.rank());
    const auto departures = oracle_.departures(plan_.rank());
    ASSERT_EQ(testing::texts(plan_.arrivals()), testing::texts(arrivals));
    ASSERT_EQ(testing::texts(plan_.departures()), testing::texts(departures));
    std::map<ChunkId, std::string> by_chunk;
    std::int64_t received = 0;
    for (const auto& t : arrivals) {
      by_chunk[t.chunk] = testing::text(t);
      if (t.peer != plan_.rank()) received += t.rows;
    }
    std::int64_t sent = 0;
    for (const auto& t : departures) sent += t.rows;
    ASSERT_EQ(plan_.received_rows(), received);
    ASSERT_EQ(plan_.sent_rows(), sent);
    for (const Chunk& c : plan_.chunks()) {
      const ChunkTransfer* t = plan_.arrival(c.id);
      ASSERT_EQ(t != nullptr, by_chunk.contains(c.id)) << c.id;
      if (t) {
        ASSERT_EQ(testing::text(*t), by_chunk[c.id]);
      }
    }
  }

  void steps() const {
    enum class State { untouched, open, done };
    std::vector<State> state(shard_.size(), State::untouched);
    std::vector<std::map<std::int64_t, int>> seen(shard_.size());
    for (const IndexerStep& step : plan_.indexer_steps()) {
      const auto rows = members(step.rows);
      const auto keys = members(step.keys);
      ASSERT_FALSE(rows.empty());
      ASSERT_EQ(step.row_count(), std::ssize(rows));
      std::set<std::int64_t> used;
      for (const std::int64_t row : rows) {
        State& s = state[static_cast<std::size_t>(row)];
        ASSERT_EQ(s, step.first ? State::untouched : State::open) << row;
        s = step.last ? State::done : State::open;
        for (const std::int64_t key : keys) {
          if (keys_of(row).begin > key || key >= keys_of(row).end) continue;
          ++seen[static_cast<std::size_t>(row)][key];
          used.insert(key);
        }
      }
      ASSERT_EQ(used.size(), keys.size()) << "a step looks at keys that none of its rows sees";
      ASSERT_EQ(step.chunks, chunks_of(keys));
    }
    for (std::int64_t row = 0; row < plan_.rows(); ++row) {
      const auto i = static_cast<std::size_t>(row);
      ASSERT_EQ(state[i], State::done) << row;
      ASSERT_EQ(std::ssize(seen[i]), keys_of(row).size());
      for (const auto& [key, times] : seen[i]) ASSERT_EQ(times, 1) << key;
    }
    step_kinds();
  }

  void blocks() const {
    std::int64_t end = plan_.rows();
    std::multiset<ChunkId> final;
    for (std::size_t b = 0; b < plan_.query_blocks().size(); ++b) {
      const RowRange block = plan_.query_blocks()[b];
      ASSERT_LE(block.end, end);
      ASSERT_TRUE(silent(block.end, end)) << "block " << b;
      ASSERT_GE(block.size(), 1);
      ASSERT_LE(block.size(), plan_.options().block_rows);
      ASSERT_FALSE(keys_of(block.begin).empty() || keys_of(block.end - 1).empty()) << "block " << b;
      // No more of them than are needed.
      ASSERT_TRUE(b + 1 == plan_.query_blocks().size() ||
                  silent(std::max<std::int64_t>(block.end - plan_.options().block_rows, 0), block.begin));
      end = block.begin;
      std::vector<ChunkId> expected;
      for (const ChunkTransfer& t : plan_.arrivals()) {
        if (seen_by(t, block.begin, block.end) && !seen_by(t, 0, block.begin)) expected.push_back(t.chunk);
      }
      const auto actual = plan_.final_after(b);
      ASSERT_EQ(std::vector<ChunkId>(actual.begin(), actual.end()), expected) << "block " << b;
      final.insert(actual.begin(), actual.end());
    }
    ASSERT_TRUE(silent(0, end));
    std::multiset<ChunkId> all;
    for (const ChunkTransfer& t : plan_.arrivals()) all.insert(t.chunk);
    ASSERT_EQ(final, all);
  }

 private:
  std::int64_t needed(std::int64_t landed) const { return needed_[static_cast<std::size_t>(landed)]; }
  std::int64_t position(std::int64_t row) const { return shard_[static_cast<std::size_t>(row)]; }
  std::int64_t landed(std::int64_t position) const {
    const auto found = std::ranges::find(needed_, position);
    return found == needed_.end() ? -1 : found - needed_.begin();
  }
  RowRange keys_of(std::int64_t row) const {
    const auto i = static_cast<std::size_t>(row);
    return {plan_.key_begin()[i], plan_.key_end()[i]};
  }
  bool is_own(std::int64_t landed) const { return oracle_.at(needed(landed)).owner == plan_.rank(); }
  std::int64_t own_keys(std::int64_t row) const {
    std::int64_t own = 0;
    for (std::int64_t k = keys_of(row).begin; k < keys_of(row).end; ++k) own += is_own(k) ? 1 : 0;
    return own;
  }
  /// Chunks that bring these landed rows, in arrival order.
  std::vector<ChunkId> chunks_of(const std::vector<std::int64_t>& keys) const {
    std::set<ChunkId> brought;
    for (const std::int64_t k : keys) brought.insert(oracle_.chunk_of(needed(k)));
    std::vector<ChunkId> ordered;
    for (const ChunkTransfer& t : plan_.arrivals()) {
      if (brought.contains(t.chunk)) ordered.push_back(t.chunk);
    }
    return ordered;
  }
  /// Whether none of these rows sees a key.
  bool silent(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      if (!keys_of(row).empty()) return false;
    }
    return true;
  }
  bool seen_by(const ChunkTransfer& t, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const RowRange visible = oracle_.at(position(row)).visible;
      for (std::int64_t p = visible.begin; p < visible.end; ++p) {
        if (oracle_.chunk_of(p) == t.chunk) return true;
      }
    }
    return false;
  }

  /// The quarter of the received rows in which the last key of a row arrives.
  std::int64_t quarter_of(std::int64_t row) const {
    std::set<ChunkId> wanted;
    for (std::int64_t k = keys_of(row).begin; k < keys_of(row).end; ++k) wanted.insert(oracle_.chunk_of(needed(k)));
    std::int64_t so_far = 0;
    std::int64_t until_last = 0;
    for (const ChunkTransfer& t : plan_.arrivals()) {
      if (t.peer != plan_.rank()) so_far += t.rows;
      if (wanted.contains(t.chunk)) until_last = so_far;
    }
    std::int64_t quarter = 0;
    while (4 * until_last > (quarter + 1) * so_far) ++quarter;
    return quarter;
  }

  /// Which rows are in which kind of step, and the order of the steps.
  void step_kinds() const {
    std::vector<std::int64_t> local;
    std::vector<std::int64_t> mixed;
    for (std::int64_t row = 0; row < plan_.rows(); ++row) {
      (own_keys(row) == keys_of(row).size() ? local : mixed).push_back(row);
    }
    auto step = plan_.indexer_steps().begin();
    const auto end = plan_.indexer_steps().end();
    if (!local.empty()) {
      ASSERT_EQ(members(step->rows), local);
      ASSERT_TRUE(step->first && step->last);
      for (const std::int64_t k : members(step->keys)) ASSERT_TRUE(is_own(k));
      ++step;
    }
    if (mixed.empty()) {
      ASSERT_EQ(step, end);
      return;
    }
    const auto carried = members(step->rows);
    ASSERT_TRUE(step->first && !step->last);
    ASSERT_EQ(std::ssize(carried), std::min<std::int64_t>(plan_.options().carry_rows, std::ssize(mixed)));
    for (const std::int64_t k : members(step->keys)) ASSERT_TRUE(is_own(k));
    for (const std::int64_t row : mixed) {
      if (std::ranges::find(carried, row) != carried.end()) continue;
      for (const std::int64_t c : carried) ASSERT_GE(own_keys(c), own_keys(row));
    }
    ++step;
    ASSERT_LE(end - step, 5);
    std::ptrdiff_t previous = -1;
    int continuations = 0;
    std::set<std::int64_t> quarters;
    for (; step != end; ++step) {
      ASSERT_TRUE(step->last);
      if (!step->first) {
        ++continuations;
        ASSERT_EQ(members(step->rows), carried);
        for (const std::int64_t k : members(step->keys)) ASSERT_FALSE(is_own(k));
      } else {
        const std::int64_t quarter = quarter_of(members(step->rows).front());
        for (const std::int64_t row : members(step->rows)) ASSERT_EQ(quarter_of(row), quarter) << row;
        ASSERT_TRUE(quarters.insert(quarter).second);
      }
      const std::ptrdiff_t last = plan_.arrival(step->chunks.back()) - plan_.arrivals().data();
      ASSERT_GE(last, previous);
      previous = last;
    }
    ASSERT_EQ(continuations, 1);
  }

  const Plan& plan_;
  const PlanOracle& oracle_;
  std::vector<std::int64_t> needed_;
  std::vector<std::int64_t> shard_;
};

TEST(PlanOracle, EveryAccessorAgreesRowByRow) {
  auto rng = testing::test_rng(2);
  for (int i = 0; i < 120; ++i) {
    const Batch batch = testing::random_batch(rng);
    const PlanOptions options = random_options(rng);
    SCOPED_TRACE(fmt::format("{} chunk_tokens={} carry_rows={} block_rows={} max_runs={}", batch.text(),
                             options.chunk_tokens, options.carry_rows, options.block_rows, options.max_runs));
    const PlanOracle oracle(batch, options);
    const SequenceLayout layout = batch.layout();
    for (int rank = 0; rank < batch.ranks; ++rank) {
      SCOPED_TRACE(fmt::format("rank {}", rank));
      const Plan plan(layout, rank, options);
      const PlanCheck check(plan, oracle);
      check.rows();
      check.chunks();
      check.transfers();
      check.steps();
      check.blocks();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tandem

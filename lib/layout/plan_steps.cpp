// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "layout/plan_data.hpp"

namespace tandem::detail {
namespace {

/// Rows that cannot start on local keys are split by when the last of their keys arrives, into at most this many steps:
/// the early slices of a zigzag shard need not wait for the whole gather.
constexpr std::int64_t late_steps = 4;

/// Landed rows [begin, end), all brought by arrivals()[arrival].
struct LandedPiece {
  std::int64_t begin;
  std::int64_t end;
  std::size_t arrival;
};

/// Ranges in ascending order of both bounds; touching ones become one.
void append_merged(std::vector<RowRange>& ranges, RowRange next) {
  if (next.empty()) return;
  if (!ranges.empty() && ranges.back().end >= next.begin) {
    ranges.back().end = std::max(ranges.back().end, next.end);
  } else {
    ranges.push_back(next);
  }
}

std::vector<RowRange> intersection(const std::vector<RowRange>& a, const std::vector<RowRange>& b) {
  std::vector<RowRange> result;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    append_merged(result, {std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)});
    a[i].end < b[j].end ? ++i : ++j;
  }
  return result;
}

class StepMaker {
 public:
  explicit StepMaker(const PlanData& plan) : plan_(plan) {
    for (std::size_t i = 0; i < plan.arrivals.size(); ++i) {
      for (const Run& run : plan.arrivals[i].runs) pieces_.push_back({run.landed_row, run.landed_row + run.rows, i});
    }
    std::sort(pieces_.begin(), pieces_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (const LandedPiece& p : pieces_) append_merged(is_own(p.arrival) ? own_ : others_, {p.begin, p.end});
  }

  std::vector<IndexerStep> make() {
    classify_rows();
    std::vector<IndexerStep> steps;
    std::vector<IndexerStep> late;
    if (!local_rows_.empty()) steps.push_back(step(local_rows_));
    if (!carried_rows_.empty()) {
      steps.push_back(step(carried_rows_, &own_));
      steps.back().last = false;
      late.push_back(step(carried_rows_, &others_));
      late.back().first = false;
    }
    for (const std::vector<std::int64_t>& rows : late_parts()) {
      if (!rows.empty()) late.push_back(step(rows));
    }
    std::stable_sort(late.begin(), late.end(), [this](const IndexerStep& a, const IndexerStep& b) {
      return arrival_of(a.chunks.back()) < arrival_of(b.chunks.back());
    });
    steps.insert(steps.end(), std::make_move_iterator(late.begin()), std::make_move_iterator(late.end()));
    return steps;
  }

 private:
  bool is_own(std::size_t arrival) const { return plan_.arrivals[arrival].step == 0; }
  std::size_t arrival_of(ChunkId chunk) const {
    return static_cast<std::size_t>(plan_.arrival_of_chunk[static_cast<std::size_t>(chunk)]);
  }
  RowRange keys_of(std::int64_t row) const {
    const auto i = static_cast<std::size_t>(row);
    return {plan_.key_begin[i], plan_.key_end[i]};
  }

  /// Per local row, how many of the keys it sees are this rank's own.
  std::vector<std::int64_t> count_own_keys() const {
    std::vector<std::int64_t> before;  // own keys ahead of each range of own_
    std::int64_t sum = 0;
    for (const RowRange& r : own_) {
      before.push_back(sum);
      sum += r.size();
    }
    const auto own_up_to = [&](std::int64_t end) -> std::int64_t {
      const auto next = std::lower_bound(own_.begin(), own_.end(), end,
                                         [](const RowRange& r, std::int64_t e) { return r.begin < e; });
      if (next == own_.begin()) return 0;
      const RowRange& r = *(next - 1);
      return before[static_cast<std::size_t>(next - own_.begin() - 1)] + std::min(end, r.end) - r.begin;
    };
    std::vector<std::int64_t> count;
    for (std::int64_t row = 0; row < plan_.rows(); ++row) {
      const RowRange keys = keys_of(row);
      count.push_back(own_up_to(keys.end) - own_up_to(keys.begin));
    }
    return count;
  }

  void classify_rows() {
    const std::vector<std::int64_t> own = count_own_keys();
    std::vector<std::int64_t> mixed;
    for (std::int64_t row = 0; row < plan_.rows(); ++row) {
      (own[static_cast<std::size_t>(row)] == keys_of(row).size() ? local_rows_ : mixed).push_back(row);
    }
    // Those that can do most before anything arrives are carried; of equals the later ones.
    const auto carried = mixed.begin() + std::min<std::int64_t>(plan_.options.carry_rows, std::ssize(mixed));
    std::nth_element(mixed.begin(), carried, mixed.end(), [&](std::int64_t a, std::int64_t b) {
      const std::int64_t own_a = own[static_cast<std::size_t>(a)];
      const std::int64_t own_b = own[static_cast<std::size_t>(b)];
      return own_a != own_b ? own_a > own_b : a > b;
    });
    carried_rows_.assign(mixed.begin(), carried);
    late_rows_.assign(carried, mixed.end());
    std::sort(carried_rows_.begin(), carried_rows_.end());
    std::sort(late_rows_.begin(), late_rows_.end());
  }

  /// The rows that are neither local nor carried, by the share of all received rows that must be here for them.
  std::vector<std::vector<std::int64_t>> late_parts() const {
    std::vector<std::int64_t> part_of_arrival;
    std::int64_t received = 0;
    for (const ChunkTransfer& t : plan_.arrivals) {
      if (t.step > 0) received += t.rows;
      part_of_arrival.push_back(received == 0 ? 0 : (received * late_steps - 1) / plan_.received_rows);
    }
    std::vector<std::vector<std::int64_t>> parts(late_steps);
    std::size_t piece = 0;
    std::size_t latest = 0;
    std::int64_t document = -1;
    for (const std::int64_t row : late_rows_) {
      const RowRange keys = keys_of(row);
      if (keys.begin != document) {
        // The last needed row of a document is a query here: a piece that reaches into the next document is own, so it
        // arrives before all that counts for this row and may stay passed over.
        document = keys.begin;
        latest = 0;
        while (pieces_[piece].end <= keys.begin) ++piece;
      }
      for (; piece < pieces_.size() && pieces_[piece].begin < keys.end; ++piece) {
        latest = std::max(latest, pieces_[piece].arrival);
      }
      parts[static_cast<std::size_t>(part_of_arrival[latest])].push_back(row);
    }
    return parts;
  }

  /// `rows` over the keys they see, of those only the ones `among` unless it is null.
  IndexerStep step(const std::vector<std::int64_t>& rows, const std::vector<RowRange>* among = nullptr) const {
    IndexerStep result;
    for (const std::int64_t row : rows) {
      append_merged(result.rows, {row, row + 1});
      append_merged(result.keys, keys_of(row));
    }
    if (among) result.keys = intersection(result.keys, *among);
    std::vector<char> used(plan_.arrivals.size());
    auto key = result.keys.begin();
    for (const LandedPiece& p : pieces_) {
      while (key != result.keys.end() && key->end <= p.begin) ++key;
      if (key == result.keys.end()) break;
      if (key->begin < p.end) used[p.arrival] = 1;
    }
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i]) result.chunks.push_back(plan_.arrivals[i].chunk);
    }
    return result;
  }

  const PlanData& plan_;
  std::vector<LandedPiece> pieces_;  ///< all landed rows, ascending
  std::vector<RowRange> own_;        ///< landed rows that this rank owns
  std::vector<RowRange> others_;
  std::vector<std::int64_t> local_rows_;  ///< see own keys only, or nothing
  std::vector<std::int64_t> carried_rows_;
  std::vector<std::int64_t> late_rows_;
};

}  // namespace

std::vector<IndexerStep> make_indexer_steps(const PlanData& plan) { return StepMaker(plan).make(); }

}  // namespace tandem::detail

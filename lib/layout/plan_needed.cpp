// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "layout/plan_data.hpp"

namespace tandem::detail {
namespace {

/// Queries of one document that are in one segment.
struct QueryPart {
  std::int64_t document_begin;
  RowRange rows;
};

/// Calls visit(QueryPart) for what `rows` of one document has beside keys alone, of which `silent` is the first that
/// may be in it.
template <class Visit>
void visit_queries(std::int64_t document_begin, RowRange rows, std::span<const RowRange>& silent, Visit visit) {
  while (!silent.empty() && silent.front().end <= rows.begin) silent = silent.subspan(1);
  for (const RowRange& keys : silent) {
    if (keys.begin >= rows.end) break;
    if (rows.begin < keys.begin) visit(QueryPart{document_begin, {rows.begin, keys.begin}});
    rows.begin = std::min(keys.end, rows.end);
  }
  if (!rows.empty()) visit(QueryPart{document_begin, rows});
}

/// Calls visit(QueryPart) for the queries of a rank, in ascending order.
template <class Visit>
void for_each_query_part(const SequenceLayout& layout, int rank, Visit visit) {
  std::span<const RowRange> silent = layout.keys_only();
  const std::span<const std::int64_t> cu = layout.cu_seqlens();
  const std::span<const std::int64_t> padded = layout.cu_seqlens_padded();
  const auto documents = static_cast<std::size_t>(layout.documents());
  std::size_t d = 0;
  for (const RowRange& segment : layout.segments(rank)) {
    while (d < documents && padded[d + 1] <= segment.begin) ++d;
    while (d < documents && padded[d] < segment.end) {
      const std::int64_t real_end = padded[d] + cu[d + 1] - cu[d];
      const RowRange part{std::max(segment.begin, padded[d]), std::min(segment.end, real_end)};
      if (!part.empty()) visit_queries(padded[d], part, silent, visit);
      if (padded[d + 1] > segment.end) break;  // the next segment may hold more of it
      ++d;
    }
  }
}

}  // namespace

std::vector<NeededRange> needed_rows(const SequenceLayout& layout, int rank) {
  std::vector<NeededRange> needed;
  for_each_query_part(layout, rank, [&](const QueryPart& part) {
    // The last range reaches into this document, or up to it, or ends before it.
    if (!needed.empty() && needed.back().end >= part.document_begin) {
      needed.back().end = part.rows.end;
    } else {
      needed.push_back({part.document_begin, part.rows.end, 0});
    }
  });
  std::int64_t landed = 0;
  for (NeededRange& n : needed) {
    n.landed_row = landed;
    landed += n.end - n.begin;
  }
  return needed;
}

std::int64_t landed_row(const std::vector<NeededRange>& needed, std::int64_t position) {
  const auto next = std::upper_bound(needed.begin(), needed.end(), position,
                                     [](std::int64_t p, const NeededRange& n) { return p < n.begin; });
  if (next == needed.begin()) return -1;
  const NeededRange& n = *(next - 1);
  return position < n.end ? n.landed_row + position - n.begin : -1;
}

void fill_visible_keys(PlanData& plan) {
  plan.needed = needed_rows(plan.layout, plan.rank);
  plan.landed_rows =
      plan.needed.empty() ? 0 : plan.needed.back().landed_row + plan.needed.back().end - plan.needed.back().begin;
  const auto rows = static_cast<std::size_t>(plan.layout.rows(plan.rank));
  plan.key_begin.reserve(rows);
  plan.key_end.reserve(rows);
  const std::span<const RowRange> segments = plan.layout.segments(plan.rank);
  std::size_t segment = 0;
  std::int64_t segment_row = 0;  // local row at which that segment begins
  const auto pad_up_to = [&](std::int64_t local_row) {
    // Rows that see nothing repeat the bound before them, so that key_end never descends.
    const std::int64_t bound = plan.key_end.empty() ? 0 : plan.key_end.back();
    plan.key_begin.resize(static_cast<std::size_t>(local_row), bound);
    plan.key_end.resize(static_cast<std::size_t>(local_row), bound);
  };
  for_each_query_part(plan.layout, plan.rank, [&](const QueryPart& part) {
    while (segments[segment].end <= part.rows.begin) segment_row += segments[segment++].size();
    pad_up_to(segment_row + part.rows.begin - segments[segment].begin);
    const std::int64_t begin = landed_row(plan.needed, part.document_begin);
    for (std::int64_t p = part.rows.begin; p < part.rows.end; ++p) {
      plan.key_begin.push_back(begin);
      plan.key_end.push_back(begin + p + 1 - part.document_begin);
    }
  });
  pad_up_to(static_cast<std::int64_t>(rows));
}

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "tandem/trace.hpp"

namespace tandem {
namespace {

struct Interval {
  std::int64_t begin;
  std::int64_t end;
};

// Disjoint, ascending, none empty.
std::vector<Interval> union_of(std::span<const Span> spans, SpanKind kind) {
  std::vector<Interval> all;
  for (const Span& s : spans) {
    if (s.kind == kind && s.begin_ns < s.end_ns) all.push_back({s.begin_ns, s.end_ns});
  }
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> merged;
  for (const Interval& i : all) {
    if (!merged.empty() && i.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, i.end);
    } else {
      merged.push_back(i);
    }
  }
  return merged;
}

std::int64_t length(const std::vector<Interval>& intervals) {
  std::int64_t sum = 0;
  for (const Interval& i : intervals) sum += i.end - i.begin;
  return sum;
}

std::int64_t common_length(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<std::int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return sum;
}

}  // namespace

OverlapSummary summarize(std::span<const Span> spans) {
  const std::vector<Interval> compute = union_of(spans, SpanKind::compute);
  const std::vector<Interval> transfer = union_of(spans, SpanKind::transfer);
  OverlapSummary summary;
  summary.compute_ns = length(compute);
  summary.transfer_ns = length(transfer);
  summary.overlap_ns = common_length(compute, transfer);
  // A sum, not a union: two streams that stall at once lose twice.
  for (const Span& s : spans) {
    if (s.kind == SpanKind::wait) summary.exposed_ns += std::max<std::int64_t>(0, s.duration_ns());
  }
  return summary;
}

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/row_check.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>

#include "support/reference/reference.hpp"
#include "tandem/bench/row_values.hpp"

namespace tandem::cli {
namespace {

/// Of the output in bf16: probabilities and results are rounded to 2^-9.
constexpr double out_bound = 0x1p-7;
constexpr double lse_bound = 1e-3;
/// The tensor cores of GPUs add products of e4m3 with some 14 bits: errors are so many times those of fp32.
constexpr double e4m3_slack = 64;

reference::Problem problem_of(const ComputeJob& job, const QueryRows& q, const std::vector<std::int64_t>& rows) {
  reference::Problem p;
  p.rows = std::ssize(rows);
  p.keys = q.keys;
  p.heads = job.shape.heads;
  p.index_heads = job.shape.index_heads;
  p.dim = job.shape.dim;
  p.topk = job.shape.topk;
  p.scale = 1.0 / std::sqrt(static_cast<double>(p.dim));
  for (const std::int64_t row : rows) {
    p.begin.push_back(q.key_begin[static_cast<std::size_t>(row)]);
    p.end.push_back(q.key_end[static_cast<std::size_t>(row)]);
  }
  return p;
}

struct FoundList {
  std::vector<std::int64_t> keys;
  bool well_formed = false;  ///< ascending, visible, -1 beyond the length
};

FoundList found_list(const RowFiller& filler, const QueryRows& q, const Tensor& indices, const Tensor& length,
                     std::int64_t row) {
  const Tensor list = filler.fetch(indices, row, 1);
  const std::int64_t topk = indices.size(1);
  const std::int64_t count = *filler.fetch(length, row, 1).data_as<std::int32_t>();
  FoundList found;
  if (count < 0 || count > topk) return found;
  const auto* const entries = list.data_as<std::int32_t>();
  found.keys.assign(entries, entries + count);
  found.well_formed = std::all_of(entries + count, entries + topk, [](std::int32_t key) { return key == -1; });
  std::int64_t least = q.key_begin[static_cast<std::size_t>(row)];
  for (const std::int64_t key : found.keys) {
    found.well_formed = found.well_formed && key >= least && key < q.key_end[static_cast<std::size_t>(row)];
    least = key + 1;
  }
  return found;
}

/// The best of `scores`, which are those of the keys from `begin` on: score descending, then key ascending.
std::vector<std::int64_t> best_keys(const std::vector<double>& scores, std::int64_t begin, std::int64_t topk) {
  std::vector<std::int64_t> keys;
  for (std::int64_t i = 0; i < std::ssize(scores); ++i) {
    if (!std::isnan(scores[static_cast<std::size_t>(i)])) keys.push_back(begin + i);
  }
  const auto score = [&](std::int64_t key) { return scores[static_cast<std::size_t>(key - begin)]; };
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::int64_t>(topk, std::ssize(keys)));
  std::partial_sort(keys.begin(), keys.begin() + count, keys.end(),
                    [&](std::int64_t a, std::int64_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  keys.resize(static_cast<std::size_t>(count));
  std::sort(keys.begin(), keys.end());
  return keys;
}

/// Whether what was selected instead of the best is as good but for rounding.
bool within_rounding(const std::vector<double>& scores, std::int64_t begin, const std::vector<std::int64_t>& found,
                     const std::vector<std::int64_t>& wanted, const std::function<double(std::int64_t)>& bound) {
  std::vector<std::int64_t> extra, missing;
  std::set_difference(found.begin(), found.end(), wanted.begin(), wanted.end(), std::back_inserter(extra));
  std::set_difference(wanted.begin(), wanted.end(), found.begin(), found.end(), std::back_inserter(missing));
  const auto score = [&](std::int64_t key) { return scores[static_cast<std::size_t>(key - begin)]; };
  double best_extra = std::numeric_limits<double>::infinity();
  double worst_missing = -best_extra;
  for (const std::int64_t key : extra) {
    if (std::isnan(score(key))) return false;
    best_extra = std::min(best_extra, score(key) + bound(key));
  }
  for (const std::int64_t key : missing) worst_missing = std::max(worst_missing, score(key) - bound(key));
  return worst_missing <= best_extra;
}

void count_near(const QueryRows& q, std::int64_t row, const std::vector<std::int64_t>& keys, RowVerdict& verdict) {
  const std::int64_t position = q.position[static_cast<std::size_t>(row)];
  verdict.listed += std::ssize(keys);
  verdict.listed_near += std::count_if(
      keys.begin(), keys.end(), [&](std::int64_t key) { return key < position && key >= position - text_window; });
}

/// `scores(i)` and `bound(i, key)` of the i-th row to check; a bound below 0 excuses nothing.
RowVerdict judge_lists(const RowFiller& filler, const QueryRows& q, std::int64_t topk, const TopkLists& found,
                       const std::function<std::vector<double>(std::int64_t)>& scores,
                       const std::function<double(std::int64_t, std::int64_t)>& bound) {
  const std::vector<std::int64_t> rows = rows_to_check(q);
  std::vector<RowVerdict> verdicts(rows.size());
  std::vector<FoundList> lists;
  for (const std::int64_t row : rows) lists.push_back(found_list(filler, q, found.indices, found.length, row));
  in_threads(std::ssize(rows), [&](std::int64_t i) {
    RowVerdict& verdict = verdicts[static_cast<std::size_t>(i)];
    const FoundList& list = lists[static_cast<std::size_t>(i)];
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    verdict.rows = 1;
    count_near(q, row, list.keys, verdict);
    const std::int64_t takes = std::min(topk, q.visible(row));
    verdict.wrong = list.well_formed && std::ssize(list.keys) == takes ? 0 : 1;
    // A well-formed list of a row that takes all it sees is right.
    if (verdict.wrong != 0 || q.visible(row) <= topk) return;
    const std::int64_t begin = q.key_begin[static_cast<std::size_t>(row)];
    const std::vector<double> all = scores(i);
    const std::vector<std::int64_t> wanted = best_keys(all, begin, topk);
    if (list.keys == wanted) return;
    const auto bound_of = [&](std::int64_t key) { return bound(i, key); };
    (bound(i, begin) >= 0 && within_rounding(all, begin, list.keys, wanted, bound_of) ? verdict.near_ties
                                                                                      : verdict.wrong) = 1;
  });
  RowVerdict sum;
  for (const RowVerdict& verdict : verdicts) sum += verdict;
  return sum;
}

}  // namespace

RowVerdict& RowVerdict::operator+=(const RowVerdict& other) {
  rows += other.rows;
  wrong += other.wrong;
  near_ties += other.near_ties;
  listed += other.listed;
  listed_near += other.listed_near;
  return *this;
}

std::vector<std::int64_t> rows_to_check(const QueryRows& rows) {
  constexpr std::int64_t most_rows = 6;
  return spread_rows(rows.queries(), most_rows);
}

RowVerdict check_selection(const RowFiller& filler, const ComputeJob& job, const QueryRows& q, const IndexTensors& in,
                           bool exact, const TopkLists& found) {
  const std::vector<std::int64_t> rows = rows_to_check(q);
  reference::Problem p = problem_of(job, q, rows);
  p.index_q = decode_rows(filler, in.q, rows);
  p.index_w = decode_rows(filler, in.w, rows);
  p.index_k = decode(filler.fetch(in.k));
  if (in.k_scale.valid()) p.index_k_scale = decode(filler.fetch(in.k_scale));
  const bool rounds = in.q.dtype() == DType::f8e4m3 && filler.device().kind() == DeviceKind::cuda;
  const double slack = rounds ? e4m3_slack : 1;
  return judge_lists(
      filler, q, job.shape.topk, found, [&](std::int64_t i) { return reference::scores(p, i); },
      [&](std::int64_t i, std::int64_t key) { return exact ? -1.0 : slack * reference::score_bound(p, i, key); });
}

RowVerdict check_selection(const RowFiller& filler, const ComputeJob& job, const QueryRows& q, const Tensor& scores,
                           const TopkLists& found) {
  const std::vector<std::int64_t> rows = rows_to_check(q);
  const std::vector<float> all = decode_rows(filler, scores, rows);
  const auto scores_of = [&](std::int64_t i) {
    const auto row = static_cast<std::size_t>(rows[static_cast<std::size_t>(i)]);
    const float* const at = all.data() + i * q.keys;
    return std::vector<double>(at + q.key_begin[row], at + q.key_end[row]);
  };
  return judge_lists(filler, q, job.shape.topk, found, scores_of, [](std::int64_t, std::int64_t) { return -1.0; });
}

RowVerdict check_attention(const RowFiller& filler, const ComputeJob& job, const QueryRows& q,
                           const AttentionTensors& in, const AttentionOutputs& found) {
  const std::vector<std::int64_t> rows = rows_to_check(q);
  reference::Problem p = problem_of(job, q, rows);
  p.q = decode_rows(filler, in.q, rows);
  p.kv = decode(filler.fetch(in.kv));
  RowVerdict verdict;
  verdict.rows = p.rows;
  reference::Lists lists;
  for (const std::int64_t row : rows) {
    FoundList list = found_list(filler, q, in.indices, in.length, row);
    count_near(q, row, list.keys, verdict);
    lists.push_back(std::move(list.keys));
  }
  const reference::Attention wanted = reference::attention(p, lists, {0, p.rows}, fill_threads());
  const std::vector<float> out = decode_rows(filler, found.out, rows);
  const std::vector<float> lse = decode_rows(filler, found.lse, rows);
  const auto heads = static_cast<std::size_t>(p.heads);
  const std::size_t width = heads * static_cast<std::size_t>(value_dim);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    reference::RelativeError error;
    error.add(std::span(out).subspan(i * width, width), std::span(wanted.out).subspan(i * width, width));
    bool good = error.value() <= out_bound;
    for (std::size_t h = i * heads; h < (i + 1) * heads; ++h) {
      const double got = lse[h];
      good = good && (got == wanted.lse[h] || std::fabs(got - wanted.lse[h]) <= lse_bound);
    }
    verdict.wrong += good ? 0 : 1;
  }
  return verdict;
}

}  // namespace tandem::cli

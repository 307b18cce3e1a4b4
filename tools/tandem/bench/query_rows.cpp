// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/query_rows.hpp"

#include <algorithm>
#include <utility>

namespace tandem::cli {
namespace {

void add_tables(const RowFiller& filler, QueryRows& q) {
  std::vector<std::int32_t> bounds;
  for (std::size_t t = 0; t < q.key_begin.size(); ++t) {
    bounds.push_back(static_cast<std::int32_t>(q.key_begin[t]));
    bounds.push_back(static_cast<std::int32_t>(q.key_end[t]));
  }
  q.bounds = filler.table(bounds, 2);
  for (const IndexerStep& step : q.steps) {
    std::vector<std::int32_t> rows, keys;
    for (const RowRange& range : step.rows) {
      for (std::int64_t t = range.begin; t < range.end; ++t) rows.push_back(static_cast<std::int32_t>(t));
    }
    for (const RowRange& range : step.keys) {
      keys.push_back(static_cast<std::int32_t>(range.begin));
      keys.push_back(static_cast<std::int32_t>(range.end));
    }
    q.step_rows.push_back(filler.table(rows, 1));
    q.step_keys.push_back(filler.table(keys, 2));
  }
}

}  // namespace

std::vector<std::int64_t> QueryRows::queries() const {
  std::vector<std::int64_t> all;
  for (std::int64_t t = 0; t < rows; ++t) {
    if (visible(t) > 0) all.push_back(t);
  }
  return all;
}

std::int64_t QueryRows::scored_pairs(std::int64_t topk) const {
  std::int64_t pairs = 0;
  for (std::int64_t t = 0; t < rows; ++t) pairs += visible(t) > topk ? visible(t) : 0;
  return pairs;
}

std::int64_t QueryRows::selected(std::int64_t topk) const {
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < rows; ++t) count += std::min(visible(t), topk);
  return count;
}

std::int64_t QueryRows::carried_rows() const {
  std::int64_t most = 0;
  for (const IndexerStep& step : steps) most = std::max(most, step.last ? 0 : step.row_count());
  return most;
}

QueryRows all_seeing_rows(const RowFiller& filler, std::int64_t count, std::int64_t keys) {
  QueryRows q;
  q.rows = count;
  q.keys = keys;
  q.key_begin.assign(static_cast<std::size_t>(count), 0);
  q.key_end.assign(static_cast<std::size_t>(count), keys);
  for (std::int64_t t = 0; t < count; ++t) q.position.push_back(std::max<std::int64_t>(1, keys - count + t + 1));
  q.steps = {{{{0, count}}, {{0, keys}}, {}, true, true}};
  add_tables(filler, q);
  return q;
}

namespace {

QueryRows rows_in_steps(const RowFiller& filler, const Plan& plan, std::vector<IndexerStep> steps) {
  QueryRows q;
  q.rows = plan.rows();
  q.keys = plan.landed_rows();
  q.key_begin.assign(plan.key_begin().begin(), plan.key_begin().end());
  q.key_end.assign(plan.key_end().begin(), plan.key_end().end());
  q.position = q.key_end;
  q.steps = std::move(steps);
  add_tables(filler, q);
  return q;
}

}  // namespace

QueryRows rows_of_plan(const RowFiller& filler, const Plan& plan) {
  return rows_in_steps(filler, plan, {plan.indexer_steps().begin(), plan.indexer_steps().end()});
}

QueryRows rows_in_one_step(const RowFiller& filler, const Plan& plan) {
  if (plan.rows() == 0) return rows_in_steps(filler, plan, {});
  return rows_in_steps(filler, plan, {{{{0, plan.rows()}}, {{0, plan.landed_rows()}}, {}, true, true}});
}

QueryRows make_query_rows(const RowFiller& filler, const QueryChoice& choice, std::int64_t keys) {
  if (choice.share == 0) return all_seeing_rows(filler, choice.queries, keys);
  const std::vector<std::int64_t> offsets{0, keys};
  return rows_of_plan(filler, Plan(SequenceLayout::zigzag(offsets, choice.share), 0));
}

}  // namespace tandem::cli

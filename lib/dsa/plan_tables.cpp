// SPDX-License-Identifier: Apache-2.0
#include "dsa/plan_tables.hpp"

#include <cstddef>

namespace tandem::detail {

namespace {

/// All tables, one after the other.
std::vector<std::int32_t> fill_tables(const Plan& plan) {
  std::vector<std::int32_t> words;
  const auto put = [&](std::int64_t word) { words.push_back(static_cast<std::int32_t>(word)); };
  const auto begin = plan.key_begin();
  const auto end = plan.key_end();
  for (std::size_t t = 0; t < begin.size(); ++t) {
    put(begin[t]);
    put(end[t]);
  }
  for (std::size_t t = 0; t < begin.size(); ++t) put(begin[t] < end[t] ? plan.to_global(begin[t]) - begin[t] : 0);
  for (const IndexerStep& step : plan.indexer_steps()) {
    for (const RowRange& rows : step.rows) {
      for (std::int64_t t = rows.begin; t < rows.end; ++t) put(t);
    }
    for (const RowRange& keys : step.keys) {
      put(keys.begin);
      put(keys.end);
    }
  }
  return words;
}

}  // namespace

PlanTables make_plan_tables(const Plan& plan, const Device& device, Deadline deadline) {
  const std::vector<std::int32_t> words = fill_tables(plan);
  const Buffer buffer = device.allocate(words.size() * sizeof(std::int32_t));
  const Stream stream = device.create_stream({.name = "tables"});
  stream.copy(buffer.data(), words.data(), words.size() * sizeof(std::int32_t));
  stream.synchronize(deadline);
  std::int64_t at = 0;
  const auto take = [&](std::initializer_list<std::int64_t> shape) {
    Tensor t = Tensor::view(buffer, static_cast<std::size_t>(at) * sizeof(std::int32_t), DType::i32, shape);
    at += t.elements();
    return t;
  };
  PlanTables tables;
  tables.bounds = take({plan.rows(), 2});
  tables.shift = take({plan.rows()});
  for (const IndexerStep& step : plan.indexer_steps()) {
    PlanTables::Step& made = tables.steps.emplace_back();
    made.rows = take({step.row_count()});
    made.keys = take({std::ssize(step.keys), 2});
  }
  return tables;
}

std::uint64_t plan_table_bytes(const Plan& plan) {
  std::int64_t words = 3 * plan.rows();
  for (const IndexerStep& step : plan.indexer_steps()) words += step.row_count() + 2 * std::ssize(step.keys);
  return static_cast<std::uint64_t>(words) * sizeof(std::int32_t);
}

}  // namespace tandem::detail

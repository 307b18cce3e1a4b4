// SPDX-License-Identifier: Apache-2.0
#include "sample.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tandem/kernels.hpp"

namespace tandem::cli {
namespace {

// Of a query that sees `visible` keys. Attention: logits twice (once for the loss), P.v, dP, dq, two parts of dkv.
double attention_cost(const ModelShape& s, std::int64_t visible) {
  const double per_head = 4 * static_cast<double>(s.dim) + 3 * static_cast<double>(value_dim);
  const double per_key = static_cast<double>(s.heads) * per_head + 3.0 * static_cast<double>(s.index_heads * index_dim);
  return static_cast<double>(std::min(visible, s.topk)) * per_key;
}

double scoring_cost(const ModelShape& s, std::int64_t visible) {
  return visible <= s.topk ? 0.0 : static_cast<double>(visible * s.index_heads * index_dim);
}

// Sum of `cost` over queries that see 1..n keys. It is linear up to K and beyond it, so the ends say it all.
template <class Cost>
double document_cost(const ModelShape& s, std::int64_t n, Cost cost) {
  const auto sum = [&](std::int64_t first, std::int64_t last) {
    return last < first ? 0.0 : static_cast<double>(last - first + 1) * (cost(s, first) + cost(s, last)) / 2;
  };
  return sum(1, std::min(n, s.topk)) + sum(s.topk + 1, n);
}

std::vector<RowRange> documents_of(const SequenceLayout& layout) {
  std::vector<RowRange> documents;
  for (std::int64_t d = 0; d < layout.documents(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    const std::int64_t begin = layout.cu_seqlens_padded()[i];
    const std::int64_t rows = layout.cu_seqlens()[i + 1] - layout.cu_seqlens()[i];
    if (rows > 0) documents.push_back({begin, begin + rows});
  }
  return documents;
}

// The last rows of a document that `budget` pays for, one at least.
RowRange affordable_end(const RowRange& document, const ModelShape& shape, double budget) {
  std::int64_t begin = document.end - 1;
  double spent = attention_cost(shape, document.size());
  while (begin > document.begin) {
    spent += attention_cost(shape, begin - document.begin);
    if (spent > budget) break;
    --begin;
  }
  return {begin, document.end};
}

// Real rows before `end_rows` and after it, every n-th of them.
std::vector<RowRange> spread_rows(const std::vector<RowRange>& documents, const RowRange& end_rows,
                                  std::int64_t count) {
  std::int64_t candidates = 0;
  for (const RowRange& d : documents) candidates += d.size();
  candidates -= end_rows.size();
  const std::int64_t stride = std::max<std::int64_t>(1, candidates / std::max<std::int64_t>(count, 1));
  std::vector<RowRange> rows;
  std::int64_t seen = 0;
  for (const RowRange& d : documents) {
    const std::int64_t end = d.end == end_rows.end ? end_rows.begin : d.end;
    for (std::int64_t row = d.begin; row < end; ++row) {
      if (seen++ % stride == 0) rows.push_back({row, row + 1});
    }
    if (d.end == end_rows.end) rows.push_back(end_rows);
  }
  return rows;
}

}  // namespace

CheckSample choose_sample(const SequenceLayout& layout, const ModelShape& shape, const CheckBudget& budget) {
  CheckSample sample;
  const std::vector<RowRange> documents = documents_of(layout);
  double attention = 0;
  double scoring = 0;
  std::int64_t all_rows = 0;
  for (const RowRange& d : documents) {
    attention += document_cost(shape, d.size(), attention_cost);
    scoring += document_cost(shape, d.size(), scoring_cost);
    all_rows += d.size();
  }
  if (attention <= budget.attention) {
    sample.rows = documents;
    sample.complete_keys = documents;
  } else {
    const RowRange longest = *std::max_element(
        documents.begin(), documents.end(), [](const RowRange& a, const RowRange& b) { return a.size() < b.size(); });
    const RowRange end_rows = affordable_end(longest, shape, budget.attention / 2);
    const auto single = static_cast<std::int64_t>(budget.attention / 2 * static_cast<double>(all_rows) / attention);
    sample.rows = spread_rows(documents, end_rows, std::max<std::int64_t>(single, 16));
    sample.complete_keys = {end_rows};
  }
  for (const RowRange& r : sample.rows) sample.row_count += r.size();
  scoring *= static_cast<double>(sample.row_count) / static_cast<double>(std::max<std::int64_t>(all_rows, 1));
  sample.topk_stride = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(scoring / budget.scoring)));
  if (sample.row_count < all_rows) {
    sample.cut = fmt::format("{} of {} rows, and the gradients of all keys but the last {} of the longest document",
                             all_rows - sample.row_count, all_rows, sample.complete_keys[0].size());
  }
  if (sample.topk_stride > 1) {
    sample.cut += fmt::format("{}the search for the top-k in all but one row of {}", sample.cut.empty() ? "" : "; ",
                              sample.topk_stride);
  }
  return sample;
}

}  // namespace tandem::cli

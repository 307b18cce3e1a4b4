// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/loss_check.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "support/reference/reference.hpp"
#include "tandem/bench/row_values.hpp"

namespace tandem::cli {
namespace {

/// The gradient of a score is the difference of two probabilities of about one size, each rounded.
constexpr double gradient_bound = 0x1p-6;
/// Of a row's loss, by the magnitude of its terms.
constexpr double loss_bound = 0x1p-9;

reference::Problem problem_of(const RowFiller& filler, const ComputeJob& job, const QueryRows& q, const DsaInputs& in,
                              const LandedKeys& landed, const std::vector<std::int64_t>& rows) {
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
  p.q = decode_rows(filler, in.q, rows);
  p.kv = decode(filler.fetch(landed.kv));
  p.index_q = decode_rows(filler, in.index_q, rows);
  p.index_w = decode_rows(filler, in.index_w, rows);
  p.index_k = decode(filler.fetch(landed.index_k));
  if (landed.index_k_scale.valid()) p.index_k_scale = decode(filler.fetch(landed.index_k_scale));
  return p;
}

reference::Lists lists_of(const RowFiller& filler, const TopkLists& lists, const std::vector<std::int64_t>& rows) {
  reference::Lists all;
  for (const std::int64_t row : rows) {
    const Tensor list = filler.fetch(lists.indices, row, 1);
    const std::int64_t length = *filler.fetch(lists.length, row, 1).data_as<std::int32_t>();
    const auto* const keys = list.data_as<std::int32_t>();
    all.emplace_back(keys, keys + std::clamp<std::int64_t>(length, 0, lists.indices.size(1)));
  }
  return all;
}

bool near(std::span<const float> found, std::span<const double> wanted) {
  reference::RelativeError error;
  error.add(found, wanted);
  return error.value() <= gradient_bound;
}

}  // namespace

RowVerdict check_loss(const RowFiller& filler, const ComputeJob& job, const QueryRows& q, const DsaInputs& inputs,
                      const LandedKeys& landed, const TopkLists& lists, std::int64_t query_rows, const Tensor& loss,
                      const Tensor& d_index_q, const Tensor& d_index_w) {
  const std::vector<std::int64_t> rows = rows_to_check(q);
  reference::Problem p = problem_of(filler, job, q, inputs, landed, rows);
  p.loss_scale = 1.0 / static_cast<double>(std::max<std::int64_t>(query_rows, 1));
  const reference::Lists keys = lists_of(filler, lists, rows);
  reference::IndexerLoss wanted = reference::indexer_loss(p, &keys, {0, p.rows}, fill_threads());
  const std::vector<float> found_q = decode_rows(filler, d_index_q, rows),
                           found_w = decode_rows(filler, d_index_w, rows);
  reference::settle_kinks(p, {0, p.rows}, wanted, std::vector<double>(found_q.begin(), found_q.end()));
  const auto heads = static_cast<std::size_t>(p.index_heads);
  const std::size_t width = heads * static_cast<std::size_t>(index_dim);
  RowVerdict verdict;
  verdict.rows = p.rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double value = *filler.fetch(loss, rows[i], 1).data_as<double>();
    const bool good =
        std::fabs(value - wanted.loss[i]) <= loss_bound * wanted.magnitude[i] &&
        near(std::span(found_q).subspan(i * width, width), std::span(wanted.d_index_q).subspan(i * width, width)) &&
        near(std::span(found_w).subspan(i * heads, heads), std::span(wanted.d_index_w).subspan(i * heads, heads));
    verdict.wrong += good ? 0 : 1;
  }
  return verdict;
}

}  // namespace tandem::cli

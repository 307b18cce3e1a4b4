// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/backward_check.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "support/reference/reference.hpp"
#include "tandem/bench/row_values.hpp"

namespace tandem::cli {
namespace {

constexpr std::int64_t most_keys = 4;
/// Probabilities, their gradients and dq are rounded to bf16, by 2^-9 each.
constexpr double gradient_bound = 0x1p-7;
/// Queries whose rows are on the host at once: 0.2 GB of 128 heads as numbers.
constexpr std::int64_t rows_at_once = 256;

double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

void add_scaled(double* to, double factor, const float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += factor * static_cast<double>(values[i]);
}

/// Numbers of some queries, one row after another.
class Queries {
 public:
  Queries(const RowFiller& filler, const ComputeJob& job, const AttentionTensors& in, const ForwardResults& forward,
          const std::vector<std::int64_t>& rows)
      : heads_(job.shape.heads),
        dim_(job.shape.dim),
        scale_(1.0 / std::sqrt(static_cast<double>(job.shape.dim))),
        q_(decode_rows(filler, in.q, rows)),
        out_(decode_rows(filler, forward.out, rows)),
        lse_(decode_rows(filler, forward.lse, rows)),
        dout_(decode_rows(filler, forward.dout, rows)) {}

  const float* q(std::int64_t row, std::int64_t head) const { return q_.data() + (row * heads_ + head) * dim_; }
  const float* dout(std::int64_t row, std::int64_t head) const {
    return dout_.data() + (row * heads_ + head) * value_dim;
  }
  double delta(std::int64_t row, std::int64_t head) const {
    return dot(out_.data() + (row * heads_ + head) * value_dim, dout(row, head), value_dim);
  }

  struct Pair {
    double p = 0;   ///< probability
    double ds = 0;  ///< gradient of the product of query and key
  };
  Pair pair(std::int64_t row, std::int64_t head, double delta, const float* key) const {
    const double lse = lse_[static_cast<std::size_t>(row * heads_ + head)];
    const double p = std::exp(scale_ * dot(q(row, head), key, dim_) - lse);
    return {p, p * (dot(dout(row, head), key, value_dim) - delta) * scale_};
  }

 private:
  const std::int64_t heads_, dim_;
  const double scale_;
  const std::vector<float> q_, out_, lse_, dout_;
};

/// Lists of all rows, on the host.
class AllLists {
 public:
  AllLists(const RowFiller& filler, const AttentionTensors& in)
      : indices_(filler.fetch(in.indices)), length_(filler.fetch(in.length)) {}

  std::span<const std::int32_t> of(std::int64_t row) const {
    const std::int64_t topk = indices_.size(1);
    const std::int64_t length = std::clamp<std::int64_t>(length_.data_as<std::int32_t>()[row], 0, topk);
    return {indices_.data_as<std::int32_t>() + row * topk, static_cast<std::size_t>(length)};
  }
  bool has(std::int64_t row, std::int64_t key) const {
    const auto list = of(row);
    return std::binary_search(list.begin(), list.end(), static_cast<std::int32_t>(key));
  }

 private:
  Tensor indices_, length_;
};

bool within_bound(std::span<const float> found, std::span<const double> wanted) {
  reference::RelativeError error;
  error.add(found, wanted);
  return error.value() <= gradient_bound;
}

std::vector<double> dq_of(const ComputeJob& job, const Queries& queries, std::int64_t row,
                          std::span<const std::int32_t> list, const std::vector<float>& kv) {
  const std::int64_t dim = job.shape.dim;
  std::vector<double> dq(static_cast<std::size_t>(job.shape.heads * dim));
  in_threads(job.shape.heads, [&](std::int64_t head) {
    const double delta = queries.delta(row, head);
    for (const std::int32_t k : list) {
      const float* const key = kv.data() + k * dim;
      add_scaled(dq.data() + head * dim, queries.pair(row, head, delta, key).ds, key, dim);
    }
  });
  return dq;
}

/// What `count` queries add to a key.
void add_dkv(const ComputeJob& job, const Queries& queries, std::int64_t count, const float* key,
             std::vector<double>& dkv) {
  const std::int64_t dim = job.shape.dim, parts = std::min<std::int64_t>(fill_threads(), count);
  std::vector<std::vector<double>> sums(static_cast<std::size_t>(parts), std::vector<double>(dkv.size()));
  in_threads(parts, [&](std::int64_t part) {
    double* const sum = sums[static_cast<std::size_t>(part)].data();
    for (std::int64_t row = part; row < count; row += parts) {
      for (std::int64_t head = 0; head < job.shape.heads; ++head) {
        const Queries::Pair pair = queries.pair(row, head, queries.delta(row, head), key);
        add_scaled(sum, pair.ds, queries.q(row, head), dim);
        add_scaled(sum, pair.p, queries.dout(row, head), value_dim);
      }
    }
  });
  for (const std::vector<double>& sum : sums) {
    for (std::size_t i = 0; i < dkv.size(); ++i) dkv[i] += sum[i];
  }
}

}  // namespace

std::vector<std::int64_t> keys_to_check(const QueryRows& rows) { return spread_rows(rows.keys, most_keys); }

RowVerdict check_backward(const RowFiller& filler, const ComputeJob& job, const QueryRows& q,
                          const AttentionTensors& in, const ForwardResults& forward, const Tensor& dq,
                          const Tensor& dkv) {
  if (q.rows == 0) return {};
  const AllLists lists(filler, in);
  const std::vector<float> kv = decode(filler.fetch(in.kv));
  RowVerdict verdict;
  for (const std::int64_t row : rows_to_check(q)) {
    const Queries query(filler, job, in, forward, {row});
    ++verdict.rows;
    verdict.wrong += within_bound(decode(filler.fetch(dq, row, 1)), dq_of(job, query, 0, lists.of(row), kv)) ? 0 : 1;
  }
  for (const std::int64_t key : keys_to_check(q)) {
    std::vector<double> wanted(static_cast<std::size_t>(job.shape.dim));
    std::vector<std::int64_t> rows;
    const auto add = [&] {
      if (rows.empty()) return;
      add_dkv(job, Queries(filler, job, in, forward, rows), std::ssize(rows), kv.data() + key * job.shape.dim, wanted);
      rows.clear();
    };
    for (std::int64_t row = 0; row < q.rows; ++row) {
      if (lists.has(row, key)) rows.push_back(row);
      if (std::ssize(rows) == rows_at_once) add();
    }
    add();
    ++verdict.rows;
    verdict.wrong += within_bound(decode(filler.fetch(dkv, key, 1)), wanted) ? 0 : 1;
  }
  return verdict;
}

}  // namespace tandem::cli

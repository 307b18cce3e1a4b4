// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/reference/detail.hpp"

namespace tandem::reference {

using namespace detail;

namespace {

/// gamma(index_dim + 2) of an fp32 dot, in whatever order it is summed.
constexpr double dot_gamma = (index_dim + 2) * 0x1p-24 / (1 - (index_dim + 2) * 0x1p-24);

double norm(const float* x) { return std::sqrt(dot(x, x, index_dim)); }

double magnitude_of_dot(const float* a, const float* b) {
  double sum = 0;
  for (std::int64_t c = 0; c < index_dim; ++c) sum += std::fabs(static_cast<double>(a[c]) * static_cast<double>(b[c]));
  return sum;
}

/// One row's loss over `keys`.
struct RowLoss {
  const Problem& p;
  std::int64_t row;
  std::span<const std::int64_t> keys;
  std::vector<double> z;        // [index_heads, keys]: q_h . k
  std::vector<double> d_score;  // [keys]
  double loss = 0, magnitude = 0;

  double weight(std::int64_t h) const { return p.index_w[at(row * p.index_heads + h)]; }
  bool passes(double x) const { return !p.relu || x > 0; }

  std::vector<double> key_scores() {
    const std::int64_t count = std::ssize(keys);
    std::vector<double> s(keys.size());
    z.resize(at(p.index_heads * count));
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t h = 0; h < p.index_heads; ++h) {
        const float* q = &p.index_q[at((row * p.index_heads + h) * index_dim)];
        const double x = dot(q, &p.index_k[at(keys[at(i)] * index_dim)], index_dim);
        z[at(h * count + i)] = x;
        s[at(i)] += weight(h) * (p.relu && x < 0 ? 0.0 : x);
      }
      s[at(i)] *= key_scale(p, keys[at(i)]);
    }
    return s;
  }

  void forward(std::span<const double> sums) {
    const std::vector<double> s = key_scores();
    const double most = s.empty() ? 0.0 : *std::max_element(s.begin(), s.end());
    double total = 0;
    for (const double x : s) total += std::exp(x - most);
    const double lse = most + std::log(total);
    const double norm = std::max(std::accumulate(sums.begin(), sums.end(), 0.0), 1e-10);
    d_score.resize(s.size());
    for (std::size_t i = 0; i < s.size(); ++i) {
      const double target = sums[i] / norm;
      // 0 log 0 is 0, also where the predicted probability is 0.
      const double term = target == 0 ? 0.0 : target * (std::log(std::max(target, 1e-10)) - (s[i] - lse));
      loss += term * p.loss_scale;
      magnitude += std::fabs(term * p.loss_scale);
      d_score[i] = (std::exp(s[i] - lse) - target) * p.loss_scale * p.upstream;
    }
  }

  /// The arguments of relu whose sign fp32 may get wrong, where it matters.
  std::vector<Kink> kinks(std::int64_t row_in_portion) const {
    std::vector<Kink> found;
    if (!p.relu) return found;
    const std::int64_t count = std::ssize(keys);
    std::vector<double> key_sizes;
    for (const std::int64_t key : keys) key_sizes.push_back(norm(&p.index_k[at(key * index_dim)]));
    for (std::int64_t h = 0; h < p.index_heads; ++h) {
      const float* q = &p.index_q[at((row * p.index_heads + h) * index_dim)];
      const double q_size = norm(q);
      for (std::int64_t i = 0; i < count; ++i) {
        const double x = std::fabs(z[at(h * count + i)]);
        // |q| |k| is at least the sum of magnitudes, and costs less than it.
        if (!(x <= dot_gamma * q_size * key_sizes[at(i)])) continue;
        const double dz = d_score[at(i)] * weight(h);
        if (dz == 0 || !(x <= dot_gamma * magnitude_of_dot(q, &p.index_k[at(keys[at(i)] * index_dim)]))) continue;
        found.push_back({row_in_portion, h, keys[at(i)], passes(z[at(h * count + i)]) ? -dz : dz});
      }
    }
    return found;
  }

  void backward(double* dq, double* dw, SharedRows& dk) const {
    const std::int64_t count = std::ssize(keys);
    for (std::int64_t i = 0; i < count; ++i) {
      const float* key = &p.index_k[at(keys[at(i)] * index_dim)];
      std::vector<double> dkey(at(index_dim));
      for (std::int64_t h = 0; h < p.index_heads; ++h) {
        const double x = z[at(h * count + i)];
        if (!passes(x)) continue;
        const double scale = key_scale(p, keys[at(i)]);
        const double dz = d_score[at(i)] * weight(h);  // by the scaled key's dot
        dw[h] += d_score[at(i)] * scale * x;
        add_scaled(dq + h * index_dim, dz * scale, key, index_dim);
        add_scaled(dkey.data(), dz, &p.index_q[at((row * p.index_heads + h) * index_dim)], index_dim);
      }
      dk.add(keys[at(i)], dkey.data());
    }
  }
};

}  // namespace

IndexerLoss indexer_loss(const Problem& p, const Lists* lists, Portion portion, int threads,
                         const std::vector<std::vector<double>>* given_head_sums) {
  const std::int64_t count = portion.end - portion.begin;
  IndexerLoss result;
  result.loss.resize(at(count));
  result.magnitude.resize(at(count));
  result.d_index_q.resize(at(count * p.index_heads * index_dim));
  result.d_index_w.resize(at(count * p.index_heads));
  result.d_index_k.resize(at(p.keys * index_dim));
  SharedRows dk(result.d_index_k, index_dim);
  std::vector<std::vector<Kink>> kinks(at(count));  // by row, as threads finish them in any order
  for_rows(portion, threads, [&](std::int64_t row) {
    const std::int64_t r = row - portion.begin;
    std::vector<std::int64_t> keys;
    if (lists != nullptr) {
      keys = (*lists)[at(row)];
    } else {
      keys.resize(at(std::max<std::int64_t>(p.end[at(row)] - p.begin[at(row)], 0)));
      std::iota(keys.begin(), keys.end(), p.begin[at(row)]);
    }
    RowLoss one{p, row, keys, {}, {}};
    one.forward(given_head_sums != nullptr ? (*given_head_sums)[at(row)] : head_sums(p, row, keys));
    one.backward(&result.d_index_q[at(r * p.index_heads * index_dim)], &result.d_index_w[at(r * p.index_heads)], dk);
    kinks[at(r)] = one.kinks(r);
    result.loss[at(r)] = one.loss;
    result.magnitude[at(r)] = one.magnitude;
  });
  for (const std::vector<Kink>& row : kinks) result.kinks.insert(result.kinks.end(), row.begin(), row.end());
  return result;
}

}  // namespace tandem::reference

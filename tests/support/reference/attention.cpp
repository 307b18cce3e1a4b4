// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "support/reference/detail.hpp"

namespace tandem::reference {

using namespace detail;

detail::Softmax detail::attention_softmax(const Problem& p, std::int64_t row, std::span<const std::int64_t> keys) {
  const std::int64_t count = std::ssize(keys);
  Softmax result{std::vector<double>(at(p.heads * count)), std::vector<double>(at(p.heads))};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<double> key(&p.kv[at(keys[at(i)] * p.dim)], &p.kv[at(keys[at(i)] * p.dim)] + p.dim);
    for (std::int64_t h = 0; h < p.heads; ++h) {
      result.p[at(h * count + i)] = p.scale * dot(&p.q[at((row * p.heads + h) * p.dim)], key.data(), p.dim);
    }
  }
  for (std::int64_t h = 0; h < p.heads; ++h) {
    const std::span<double> logits(result.p.data() + h * count, at(count));
    double most = p.sink.empty() ? -std::numeric_limits<double>::infinity() : static_cast<double>(p.sink[at(h)]);
    for (const double x : logits) most = std::max(most, x);
    double sum = p.sink.empty() ? 0.0 : std::exp(static_cast<double>(p.sink[at(h)]) - most);
    for (const double x : logits) sum += std::exp(x - most);
    result.lse[at(h)] = most + std::log(sum);
    if (count == 0) result.lse[at(h)] = most;
    for (double& x : logits) x = std::exp(x - result.lse[at(h)]);
  }
  return result;
}

namespace {

struct RowGradients {
  double* dq;            // [heads, dim]
  double* p_sink_delta;  // [heads] or null
};

/// out of a row: [heads, value_dim].
void forward_row(const Problem& p, std::span<const std::int64_t> keys, const Softmax& softmax, double* out) {
  for (std::int64_t i = 0; i < std::ssize(keys); ++i) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      add_scaled(out + h * value_dim, softmax.p[at(h * std::ssize(keys) + i)], &p.kv[at(keys[at(i)] * p.dim)],
                 value_dim);
    }
  }
}

void backward_row(const Problem& p, std::int64_t row, std::span<const std::int64_t> keys, const Softmax& softmax,
                  const double* out, const RowGradients& to, SharedRows& dkv) {
  std::vector<double> delta(at(p.heads));
  for (std::int64_t h = 0; h < p.heads; ++h) {
    delta[at(h)] = dot(out + h * value_dim, &p.dout[at((row * p.heads + h) * value_dim)], value_dim);
    if (to.p_sink_delta == nullptr) continue;
    to.p_sink_delta[h] = std::exp(static_cast<double>(p.sink[at(h)]) - softmax.lse[at(h)]) * delta[at(h)];
  }
  std::vector<double> key(at(p.dim)), dkey(at(p.dim));
  for (std::int64_t i = 0; i < std::ssize(keys); ++i) {
    std::copy_n(&p.kv[at(keys[at(i)] * p.dim)], p.dim, key.begin());
    std::fill(dkey.begin(), dkey.end(), 0.0);
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const float* q = &p.q[at((row * p.heads + h) * p.dim)];
      const float* dout = &p.dout[at((row * p.heads + h) * value_dim)];
      const double probability = softmax.p[at(h * std::ssize(keys) + i)];
      const double ds = probability * (dot(dout, key.data(), value_dim) - delta[at(h)]) * p.scale;
      add_scaled(to.dq + h * p.dim, ds, key.data(), p.dim);
      add_scaled(dkey.data(), ds, q, p.dim);
      add_scaled(dkey.data(), probability, dout, value_dim);
    }
    dkv.add(keys[at(i)], dkey.data());
  }
}

}  // namespace

Attention attention(const Problem& p, const Lists& lists, Portion portion, int threads) {
  const std::int64_t count = portion.end - portion.begin;
  const bool backward = !p.dout.empty();
  const bool with_sink = backward && !p.sink.empty();
  Attention a;
  a.out.resize(at(count * p.heads * value_dim));
  a.lse.resize(at(count * p.heads));
  a.dq.resize(backward ? at(count * p.heads * p.dim) : 0);
  a.dkv.resize(backward ? at(p.keys * p.dim) : 0);
  a.dsink.resize(with_sink ? at(p.heads) : 0);
  std::vector<double> sink_terms(with_sink ? at(count * p.heads) : 0);
  SharedRows dkv(a.dkv, p.dim);
  for_rows(portion, threads, [&](std::int64_t row) {
    const std::int64_t r = row - portion.begin;
    const auto& keys = lists[at(row)];
    const Softmax softmax = attention_softmax(p, row, keys);
    std::copy(softmax.lse.begin(), softmax.lse.end(), a.lse.begin() + r * p.heads);
    double* out = a.out.data() + r * p.heads * value_dim;
    forward_row(p, keys, softmax, out);
    if (!backward || keys.empty()) return;
    const RowGradients to{a.dq.data() + r * p.heads * p.dim, with_sink ? sink_terms.data() + r * p.heads : nullptr};
    backward_row(p, row, keys, softmax, out, to, dkv);
  });
  for (std::size_t i = 0; i < sink_terms.size(); ++i) a.dsink[i % at(p.heads)] -= sink_terms[i];
  return a;
}

Attention attention(const Problem& p, const Lists& lists) { return attention(p, lists, {0, p.rows}); }

std::vector<double> head_sums(const Problem& p, std::int64_t row, std::span<const std::int64_t> keys) {
  const Softmax softmax = attention_softmax(p, row, keys);
  std::vector<double> sums(keys.size());
  for (std::size_t i = 0; i < softmax.p.size(); ++i) sums[i % keys.size()] += softmax.p[i];
  return sums;
}

}  // namespace tandem::reference

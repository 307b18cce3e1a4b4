// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "forward_cases.cuh"
#include "kernels/cuda/sm90/sparse_backward_launch.hpp"

/// Cases of the sparse backward's checks, and an oracle on the host, in float64, that has nothing in common with the
/// kernels but the formula.
namespace tandem::test {

using detail::sm90::SparseBackwardArgs;

inline float wide(std::uint16_t bits) {
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}
/// Rounded to nearest, ties to even; not for NaN.
inline std::uint16_t narrow(float value) {
  std::uint32_t word;
  std::memcpy(&word, &value, 4);
  return static_cast<std::uint16_t>((word + 0x7FFFU + (word >> 16 & 1U)) >> 16);
}
inline double rounded(double value) { return static_cast<double>(wide(narrow(static_cast<float>(value)))); }

struct BackwardCase {
  std::string name = "case";
  int heads = 64, dim = 576, topk = 64;
  std::int64_t queries = 11, keys = 1000;
  bool sink = false, holes = false, strided = false, full = false;
  bool part = false;                ///< only rows [2, s - 1)
  bool hot = false;                 ///< everybody's first entry is row 0
  float spread = 1.0F;              ///< of queries: 1 makes logits about normal
  bool deterministic = false;       ///< lists ascend
  std::int64_t rows_at_a_time = 0;  ///< if positive, workspace for so many rows only
  int visit = 0;

  std::int64_t begin() const { return part ? 2 : 0; }
  std::int64_t end() const { return part ? queries - 1 : queries; }
  std::int64_t rows() const { return end() - begin(); }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(dim)); }
};

/// Dense tensors of a case. `out` and `lse` are those of the exact forward, rounded.
struct BackwardData {
  std::vector<std::uint16_t> q, kv, dout, out;
  std::vector<float> lse, sink, dkv;  ///< dkv: what is there before
  std::vector<std::int32_t> lists, length;
};

/// What the oracle finds for the case's rows, and the same of a plain evaluation: P, dS and results rounded to bf16,
/// sums in fp32. Its errors are the yardstick.
struct BackwardTruth {
  std::vector<double> p, ds, ds_error;    ///< [rows, H, K]; ds_error: what fp32 sums may be off, before rounding
  std::vector<double> delta, delta_size;  ///< [rows, H]; size: sum of |out dout|
  std::vector<double> dq, plain_dq;       ///< [rows, H, d]
  std::vector<double> dkv, plain_dkv;     ///< [n, d], what was there included
  std::vector<double> dsink, dsink_size;  ///< [H]
  std::vector<double> head_sums;          ///< [rows, K]
};

inline int valid_length(const BackwardCase& c, const BackwardData& d, std::int64_t t) {
  const int length = d.length[static_cast<std::size_t>(t)];
  return length < 0 || length > c.topk ? 0 : length;
}
inline bool is_row(const BackwardCase& c, std::int32_t entry) { return entry >= 0 && entry < c.keys; }

inline std::vector<float> widened(const std::vector<std::uint16_t>& from) {
  std::vector<float> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = wide(from[i]);
  return to;
}

inline std::vector<std::uint16_t> normal_bf16(std::size_t count, float factor, std::uint64_t seed) {
  std::vector<std::uint16_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = narrow(normal(seed, i) * factor);
  return values;
}

/// out and lse from q, kv, lists and the sink.
inline void exact_forward(const BackwardCase& c, BackwardData& d) {
  const auto q = widened(d.q), kv = widened(d.kv);
  const auto pairs = static_cast<std::size_t>(c.queries * c.heads);
  d.out.assign(pairs * 512, 0);
  d.lse.assign(pairs, 0.0F);
  parallel(pairs, [&](std::size_t at) {
    const auto t = static_cast<std::int64_t>(at) / c.heads;
    const auto h = at % static_cast<std::size_t>(c.heads);
    const int length = valid_length(c, d, t);
    std::vector<double> logit(static_cast<std::size_t>(length), -INFINITY);
    const double sink = d.sink.empty() ? -INFINITY : static_cast<double>(d.sink[h]);
    double top = sink;
    for (std::size_t i = 0; i < logit.size(); ++i) {
      const std::int32_t row = d.lists[static_cast<std::size_t>(t * c.topk) + i];
      if (!is_row(c, row)) continue;
      double dot = 0;
      for (int x = 0; x < c.dim; ++x) {
        dot += static_cast<double>(q[at * static_cast<std::size_t>(c.dim) + static_cast<std::size_t>(x)]) *
               static_cast<double>(kv[static_cast<std::size_t>(row * std::int64_t{c.dim} + x)]);
      }
      logit[i] = dot * static_cast<double>(c.scale());
      top = std::max(top, logit[i]);
    }
    double sum = std::isinf(sink) ? 0.0 : std::exp(sink - top);
    std::vector<double> out(512, 0.0);
    for (std::size_t i = 0; i < logit.size(); ++i) {
      if (std::isinf(logit[i])) continue;
      const double p = std::exp(logit[i] - top);
      sum += p;
      const float* v = kv.data() + d.lists[static_cast<std::size_t>(t * c.topk) + i] * std::int64_t{c.dim};
      for (std::size_t x = 0; x < 512; ++x) out[x] += p * static_cast<double>(v[x]);
    }
    d.lse[at] = std::isinf(top) ? -INFINITY : static_cast<float>(top + std::log(sum));
    for (std::size_t x = 0; x < 512; ++x) d.out[at * 512 + x] = sum > 0 ? narrow(static_cast<float>(out[x] / sum)) : 0;
  });
}

inline BackwardData make_data(const BackwardCase& c, std::uint64_t seed) {
  BackwardData d;
  const auto pairs = static_cast<std::size_t>(c.queries * c.heads), dim = static_cast<std::size_t>(c.dim);
  d.q = normal_bf16(pairs * dim, c.spread, seed);
  d.kv = normal_bf16(static_cast<std::size_t>(c.keys) * dim, 1.0F, seed + 1);
  d.dout = normal_bf16(pairs * 512, 1.0F, seed + 5);
  d.lists = make_lists(Lists::random, c.queries, c.keys, c.topk, seed + 2);
  const int lengths[] = {c.topk, 0, 1, 63, 64, 65, c.topk - 1, 128, 129, 192, c.topk / 2, c.topk + 1, -3};
  for (std::int64_t t = 0; t < c.queries; ++t) {
    const int wanted = c.full ? c.topk : lengths[(t + static_cast<std::int64_t>(seed)) % 13];
    d.length.push_back(wanted > c.topk + 1 ? c.topk : wanted);
    std::int32_t* list = d.lists.data() + t * c.topk;
    if (c.hot) {
      std::int32_t* zero = std::find(list, list + c.topk, 0);
      if (zero != list + c.topk) *zero = list[0];
      list[0] = 0;
    }
    for (int i = 0; i < c.topk; ++i) {
      const std::uint64_t r = mix(seed + 3, static_cast<std::uint64_t>(t * c.topk + i));
      if (i >= d.length.back()) {
        list[i] = r % 3 == 0 ? -1 : r % 3 == 1 ? 0x7FFFFFFF : static_cast<std::int32_t>(r >> 32);
      } else if (c.holes && (r % 7 == 0 || t % 5 == 4 || (t % 4 == 1 && i / 64 == 1) || (t % 4 == 2 && i / 64 == 0))) {
        list[i] = r % 2 == 0 ? -1 : static_cast<std::int32_t>(c.keys + static_cast<std::int64_t>(r % 3));
      }
    }
  }
  for (std::int64_t t = 0; t < c.queries && c.deterministic; ++t) {
    std::sort(d.lists.begin() + t * c.topk, d.lists.begin() + t * c.topk + valid_length(c, d, t));
  }
  if (c.sink) {
    for (int h = 0; h < c.heads; ++h) {
      d.sink.push_back(h % 5 == 4 ? -INFINITY : 3.0F * normal(seed + 4, static_cast<std::uint64_t>(h)));
    }
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(c.keys) * dim; ++i) d.dkv.push_back(normal(seed + 6, i));
  exact_forward(c, d);
  return d;
}

/// P, dS and dq of a row and head.
inline void differentiate_row(const BackwardCase& c, const BackwardData& d, const std::vector<float>& q,
                              const std::vector<float>& kv, const std::vector<float>& dout,
                              const std::vector<float>& out, std::size_t place, BackwardTruth& truth) {
  const auto dim = static_cast<std::size_t>(c.dim), heads = static_cast<std::size_t>(c.heads);
  const std::int64_t t = c.begin() + static_cast<std::int64_t>(place / heads);
  const std::size_t at = static_cast<std::size_t>(t) * heads + place % heads;
  const auto scale = static_cast<double>(c.scale());
  for (std::size_t x = 0; x < 512; ++x) {
    const double product = static_cast<double>(out[at * 512 + x]) * static_cast<double>(dout[at * 512 + x]);
    truth.delta[place] += product;
    truth.delta_size[place] += std::abs(product);
  }
  std::vector<float> plain(dim, 0.0F);
  for (int i = 0; i < valid_length(c, d, t); ++i) {
    const std::int32_t row = d.lists[static_cast<std::size_t>(t * c.topk + i)];
    if (!is_row(c, row)) continue;
    const float* k = kv.data() + row * std::int64_t{c.dim};
    double dot = 0, dp = 0, size = 0;
    for (std::size_t x = 0; x < dim; ++x) dot += static_cast<double>(q[at * dim + x]) * static_cast<double>(k[x]);
    for (std::size_t x = 0; x < 512; ++x) {
      const double product = static_cast<double>(dout[at * 512 + x]) * static_cast<double>(k[x]);
      dp += product;
      size += std::abs(product);
    }
    const std::size_t entry = place * static_cast<std::size_t>(c.topk) + static_cast<std::size_t>(i);
    const double p = std::exp(dot * scale - static_cast<double>(d.lse[at]));
    const double ds = p * (dp - truth.delta[place]) * scale;
    truth.p[entry] = p;
    truth.ds[entry] = ds;
    truth.ds_error[entry] = p * scale * 0x1p-18 * (size + truth.delta_size[place]);
    const float plain_ds = wide(narrow(static_cast<float>(ds)));
    for (std::size_t x = 0; x < dim; ++x) {
      truth.dq[place * dim + x] += ds * static_cast<double>(k[x]);
      plain[x] += plain_ds * k[x];
    }
  }
  for (std::size_t x = 0; x < dim; ++x) truth.plain_dq[place * dim + x] = rounded(static_cast<double>(plain[x]));
}

/// dkv by weights of the caller: P and dS of `place`, one entry after another.
template <typename Sum>
void add_keys(const BackwardCase& c, const BackwardData& d, const std::vector<float>& q, const std::vector<float>& dout,
              const std::vector<double>& p, const std::vector<double>& ds, bool round, std::vector<double>& dkv) {
  const auto dim = static_cast<std::size_t>(c.dim), heads = static_cast<std::size_t>(c.heads);
  constexpr std::size_t buckets = 64;
  parallel(buckets, [&](std::size_t bucket) {
    std::vector<Sum> sum(dim);
    for (std::int64_t t = c.begin(); t < c.end(); ++t) {
      for (int i = 0; i < valid_length(c, d, t); ++i) {
        const std::int32_t row = d.lists[static_cast<std::size_t>(t * c.topk + i)];
        if (!is_row(c, row) || static_cast<std::size_t>(row) % buckets != bucket) continue;
        std::fill(sum.begin(), sum.end(), Sum{0});
        for (std::size_t h = 0; h < heads; ++h) {
          const std::size_t place = static_cast<std::size_t>(t - c.begin()) * heads + h;
          const std::size_t at = static_cast<std::size_t>(t) * heads + h;
          const std::size_t entry = place * static_cast<std::size_t>(c.topk) + static_cast<std::size_t>(i);
          const auto weight = static_cast<Sum>(round ? rounded(p[entry]) : p[entry]);
          const auto gradient = static_cast<Sum>(round ? rounded(ds[entry]) : ds[entry]);
          for (std::size_t x = 0; x < dim; ++x) sum[x] += gradient * static_cast<Sum>(q[at * dim + x]);
          for (std::size_t x = 0; x < 512; ++x) sum[x] += weight * static_cast<Sum>(dout[at * 512 + x]);
        }
        for (std::size_t x = 0; x < dim; ++x) {
          double& to = dkv[static_cast<std::size_t>(row) * dim + x];
          to = static_cast<double>(static_cast<Sum>(to) + sum[x]);
        }
      }
    }
  });
}

inline BackwardTruth find_truth(const BackwardCase& c, const BackwardData& d) {
  const auto q = widened(d.q), kv = widened(d.kv), dout = widened(d.dout), out = widened(d.out);
  const auto rows = static_cast<std::size_t>(c.rows()), heads = static_cast<std::size_t>(c.heads),
             topk = static_cast<std::size_t>(c.topk), dim = static_cast<std::size_t>(c.dim);
  BackwardTruth truth;
  for (auto* of_entries : {&truth.p, &truth.ds, &truth.ds_error}) of_entries->assign(rows * heads * topk, 0.0);
  for (auto* of_rows : {&truth.delta, &truth.delta_size}) of_rows->assign(rows * heads, 0.0);
  for (auto* of_queries : {&truth.dq, &truth.plain_dq}) of_queries->assign(rows * heads * dim, 0.0);
  for (auto* of_heads : {&truth.dsink, &truth.dsink_size}) of_heads->assign(heads, 0.0);
  truth.head_sums.assign(rows * topk, 0.0);
  truth.dkv.assign(d.dkv.begin(), d.dkv.end());
  truth.plain_dkv = truth.dkv;
  parallel(rows * heads, [&](std::size_t place) { differentiate_row(c, d, q, kv, dout, out, place, truth); });
  add_keys<double>(c, d, q, dout, truth.p, truth.ds, false, truth.dkv);
  add_keys<float>(c, d, q, dout, truth.p, truth.ds, true, truth.plain_dkv);
  for (std::size_t place = 0; place < rows * heads; ++place) {
    const std::size_t row = place / heads, h = place % heads;
    for (std::size_t i = 0; i < topk; ++i) truth.head_sums[row * topk + i] += truth.p[place * topk + i];
    const std::int64_t t = c.begin() + static_cast<std::int64_t>(row);
    if (!c.sink || valid_length(c, d, t) == 0 || std::isinf(d.sink[h])) continue;
    const double lse = static_cast<double>(d.lse[static_cast<std::size_t>(t) * heads + h]);
    const double weight = std::exp(static_cast<double>(d.sink[h]) - lse);
    truth.dsink[h] -= weight * truth.delta[place];
    truth.dsink_size[h] += weight * truth.delta_size[place];
  }
  return truth;
}

}  // namespace tandem::test

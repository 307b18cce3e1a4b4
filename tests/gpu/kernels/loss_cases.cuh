// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "backward_cases.cuh"
#include "kernels/cuda/sm90/indexer_loss_launch.hpp"

/// Cases of the indexer loss' checks, and an oracle on the host, in float64, that has nothing in common with the
/// kernels but the formula.
namespace tandem::test {

using detail::sm90::IndexerLossArgs;

struct LossCase {
  std::string name = "case";
  int heads = 64, topk = 64;
  bool e4m3 = false, relu = true;
  std::int64_t queries = 11, keys = 1000;
  bool full = false;    ///< all lists have K entries
  bool holes = false;   ///< entries inside length that are no row
  bool part = false;    ///< only rows [2, s - 1)
  bool wide = false;    ///< rows of head sums are longer than K
  bool near = false;    ///< targets are almost what is predicted
  bool nan = false;     ///< some keys are NaN
  bool hot = false;     ///< everybody's first entry is row 0, and a head of each row has dots of 0
  float spread = 1.0F;  ///< of weights: 1 makes scores about normal
  double loss_scale = 0.25, upstream = 0.7;
  unsigned outputs = 15;  ///< bits 1, 2, 4 and 8: loss, d_index_q, d_index_w, d_index_k

  std::int64_t begin() const { return part ? 2 : 0; }
  std::int64_t end() const { return part ? queries - 1 : queries; }
  std::int64_t rows() const { return end() - begin(); }
  std::int64_t sums_width() const { return topk + (wide ? 5 : 0); }
};

/// A number of e4m3 by its code.
inline float wide_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

/// Numbers of either type, as they lie in memory.
inline std::vector<std::uint8_t> random_numbers(std::size_t count, bool e4m3, std::uint64_t seed) {
  std::vector<std::uint8_t> bytes;
  if (!e4m3) {
    const auto values = normal_bf16(count, 1.0F, seed);
    bytes.resize(count * 2);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < count; ++i) {
    // Of size 1/4 to 2 mostly; a few of the smallest codes, which have fewer bits.
    const std::uint64_t r = mix(seed, i);
    const std::uint64_t exponent = r % 16 == 0 ? r / 16 % 3 : 5 + r / 16 % 3;
    bytes.push_back(static_cast<std::uint8_t>((r >> 32 & 1) << 7 | exponent << 3 | (r >> 40 & 7)));
  }
  return bytes;
}
inline std::vector<double> numbers_of(const std::vector<std::uint8_t>& bytes, bool e4m3) {
  std::vector<double> values;
  for (std::size_t i = 0; i < bytes.size(); i += e4m3 ? 1 : 2) {
    values.push_back(static_cast<double>(e4m3 ? wide_e4m3(bytes[i])
                                              : wide(static_cast<std::uint16_t>(bytes[i] | bytes[i + 1] << 8))));
  }
  return values;
}

struct LossData {
  std::vector<std::uint8_t> q, k;
  std::vector<float> w, scale, head_sums;  ///< head sums: [rows, sums_width], NaN beyond the list
  std::vector<float> d_index_k;            ///< what is there before
  std::vector<std::int32_t> lists, length;
};

/// What the oracle finds, and the same of a plain evaluation: gradients of dots rounded to bf16, sums in fp32, results
/// rounded to their type. Its errors are the yardstick. `doubt` is how much a gradient may change because a dot is so
/// close to 0 that rounding decides whether it is open.
struct LossTruth {
  std::vector<double> loss, loss_error;  ///< [rows]; error: what fp32 scores may make of it
  std::vector<double> dq, plain_dq, doubt_dq;
  std::vector<double> dw, plain_dw;
  std::vector<double> dk, plain_dk, doubt_dk;  ///< [n, 128], what was there included
};

inline int loss_length(const LossCase& c, const LossData& d, std::int64_t t) {
  const int length = d.length[static_cast<std::size_t>(t)];
  return length < 0 || length > c.topk ? 0 : length;
}

/// The dots and the scores of a row's list; entries that are no key have none.
struct LossRow {
  std::vector<std::int32_t> key;  ///< -1 for none
  std::vector<double> z, z_size;  ///< [entries, Hi]; size: sum of |q k|
  std::vector<double> score, score_size;
};

inline LossRow score_row(const LossCase& c, const LossData& d, const std::vector<double>& q,
                         const std::vector<double>& k, std::int64_t t) {
  LossRow row;
  const auto heads = static_cast<std::size_t>(c.heads);
  for (int i = 0; i < loss_length(c, d, t); ++i) {
    const std::int32_t entry = d.lists[static_cast<std::size_t>(t * c.topk + i)];
    const bool there = entry >= 0 && entry < c.keys;
    row.key.push_back(there ? entry : -1);
    double score = 0, score_size = 0;
    for (std::size_t h = 0; h < heads; ++h) {
      double z = 0, size = 0;
      for (std::size_t x = 0; there && x < 128; ++x) {
        const double product =
            q[(static_cast<std::size_t>(t) * heads + h) * 128 + x] * k[static_cast<std::size_t>(entry) * 128 + x];
        z += product;
        size += std::abs(product);
      }
      row.z.push_back(z);
      row.z_size.push_back(size);
      const auto w = static_cast<double>(d.w[static_cast<std::size_t>(t) * heads + h]);
      score += w * (c.relu && z <= 0 ? 0.0 : z);
      score_size += std::abs(w) * size;
    }
    const double scale = there && c.e4m3 ? static_cast<double>(d.scale[static_cast<std::size_t>(entry)]) : 1.0;
    row.score.push_back(score * scale);
    row.score_size.push_back(score_size * scale);
  }
  return row;
}

inline LossData make_loss_data(const LossCase& c, std::uint64_t seed) {
  LossData d;
  const auto pairs = static_cast<std::size_t>(c.queries * c.heads), keys = static_cast<std::size_t>(c.keys);
  d.q = random_numbers(pairs * 128, c.e4m3, seed);
  d.k = random_numbers(keys * 128, c.e4m3, seed + 1);
  const std::size_t row_bytes = c.e4m3 ? 128 : 256, heads = static_cast<std::size_t>(c.heads);
  for (std::size_t t = 0; c.hot && t < static_cast<std::size_t>(c.queries); ++t) {
    std::fill_n(d.q.begin() + static_cast<std::ptrdiff_t>((t * heads + t % heads) * row_bytes), row_bytes, 0);
  }
  // Scores of about 1.
  const float usual = c.spread / (8.0F * std::sqrt(static_cast<float>(c.heads)));
  for (std::size_t i = 0; i < pairs; ++i) d.w.push_back(normal(seed + 2, i) * usual);
  for (std::size_t i = 0; i < keys; ++i) {
    d.scale.push_back(0.5F + static_cast<float>(mix(seed + 3, i) % 1024) / 1024.0F);
  }
  for (std::size_t i = 0; c.nan && i < keys; i += 97) {
    if (c.e4m3) d.k[i * 128 + i % 128] = 0x7F;
    if (!c.e4m3) d.k[(i * 128 + i % 128) * 2 + 1] = 0x7F, d.k[(i * 128 + i % 128) * 2] = 0xC0;
  }
  d.lists = make_lists(Lists::ascending, c.queries, c.keys, c.topk, seed + 4);
  const int lengths[] = {c.topk, 0, 1, 63, 64, 65, c.topk - 1, 128, 129, 192, c.topk / 2, c.topk + 1, -3};
  for (std::int64_t t = 0; t < c.queries; ++t) {
    const int wanted = c.full ? c.topk : lengths[(t + static_cast<std::int64_t>(seed)) % 13];
    d.length.push_back(wanted > c.topk + 1 ? c.topk : wanted);
    std::int32_t* const list = d.lists.data() + t * c.topk;
    if (c.hot) list[0] = 0;
    for (int i = 0; i < c.topk; ++i) {
      const std::uint64_t r = mix(seed + 5, static_cast<std::uint64_t>(t * c.topk + i));
      if (i >= d.length.back()) {
        list[i] = r % 3 == 0 ? -1 : r % 3 == 1 ? 0x7FFFFFFF : static_cast<std::int32_t>(r >> 32);
      } else if (c.holes && (r % 7 == 0 || t % 5 == 4 || (t % 4 == 1 && i / 64 == 1) || (t % 4 == 2 && i / 64 == 0))) {
        list[i] = r % 2 == 0 ? -1 : static_cast<std::int32_t>(c.keys + static_cast<std::int64_t>(r % 3));
      }
    }
  }
  const auto q = numbers_of(d.q, c.e4m3), k = numbers_of(d.k, c.e4m3);
  d.head_sums.assign(static_cast<std::size_t>(c.rows() * c.sums_width()), NAN);
  parallel(static_cast<std::size_t>(c.rows()), [&](std::size_t place) {
    const std::int64_t t = c.begin() + static_cast<std::int64_t>(place);
    const LossRow row = c.near ? score_row(c, d, q, k, t) : LossRow{};
    for (int i = 0; i < loss_length(c, d, t); ++i) {
      const std::uint64_t r = mix(seed + 6, static_cast<std::uint64_t>(t * c.topk + i));
      float sum = static_cast<float>(r >> 40) / 16777216.0F;
      if (r % 10 == 0) sum = 0.0F;
      if (r % 10 == 1) sum *= 1e-12F;
      if (t % 7 == 3) sum *= 1e-14F;  // the sum of them all is below what it is divided by at least
      if (t % 7 == 5) sum *= 1e-22F;  // and every target below what its logarithm is taken of at least
      if (c.near) {
        sum = static_cast<float>((8.0 + 0.2 * static_cast<double>(normal(seed + 8, r))) *
                                 std::exp(row.score[static_cast<std::size_t>(i)]));
      }
      d.head_sums[place * static_cast<std::size_t>(c.sums_width()) + static_cast<std::size_t>(i)] = sum;
    }
  });
  for (std::size_t i = 0; i < keys * 128; ++i) d.d_index_k.push_back(1e-4F * normal(seed + 7, i));
  return d;
}

/// What a row's keys add to d_index_k, so that they can be added in order.
struct LossKeyTerms {
  std::vector<std::int32_t> key;
  std::vector<double> exact, doubt;  ///< [entries, 128]
  std::vector<float> plain;
};

inline LossKeyTerms differentiate_loss_row(const LossCase& c, const LossData& d, const std::vector<double>& q,
                                           const std::vector<double>& k, std::size_t place, LossTruth& truth) {
  const std::int64_t t = c.begin() + static_cast<std::int64_t>(place);
  const auto heads = static_cast<std::size_t>(c.heads);
  const LossRow row = score_row(c, d, q, k, t);
  const float* const sums = d.head_sums.data() + place * static_cast<std::size_t>(c.sums_width());
  LossKeyTerms terms;
  terms.key = row.key;
  const std::size_t entries = row.key.size();
  double top = -INFINITY, total = 0, size = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    if (row.key[i] < 0) continue;
    top = std::max(top, row.score[i]);
    total += static_cast<double>(sums[i]);
    size = std::max(size, row.score_size[i]);
  }
  double sum = 0, loss = 0, weight = 0;
  for (std::size_t i = 0; i < entries; ++i) sum += row.key[i] < 0 ? 0.0 : std::exp(row.score[i] - top);
  const double lse = top + std::log(sum);
  terms.exact.assign(entries * 128, 0.0);
  terms.doubt.assign(entries * 128, 0.0);
  terms.plain.assign(entries * 128, 0.0F);
  std::vector<float> plain_dq(heads * 128, 0.0F);
  for (std::size_t i = 0; i < entries; ++i) {
    if (row.key[i] < 0) continue;
    const double target = static_cast<double>(sums[i]) / std::max(total, 1e-10);
    weight += target;
    if (target != 0) loss += target * (std::log(std::max(target, 1e-10)) - row.score[i] + lse);
    const double g = (std::exp(row.score[i] - lse) - target) * c.loss_scale * c.upstream;
    const auto key = static_cast<std::size_t>(row.key[i]);
    // What NaN reaches is not looked at, be it through an open head or not.
    if (std::isnan(g)) {
      std::fill_n(terms.exact.begin() + static_cast<std::ptrdiff_t>(i * 128), 128, NAN);
      std::fill_n(truth.dq.begin() + static_cast<std::ptrdiff_t>(place * heads * 128), heads * 128, NAN);
      std::fill_n(truth.dw.begin() + static_cast<std::ptrdiff_t>(place * heads), heads, NAN);
    }
    const double scale = c.e4m3 ? static_cast<double>(d.scale[key]) : 1.0;
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t at = static_cast<std::size_t>(t) * heads + h;
      const double z = row.z[i * heads + h], dz = g * static_cast<double>(d.w[at]);
      const bool open = !c.relu || z > 0;
      const bool doubtful = c.relu && std::abs(z) < 0x1p-20 * row.z_size[i * heads + h];
      if (open) truth.dw[place * heads + h] += g * scale * z;
      const float plain_dz = open ? wide(narrow(static_cast<float>(dz))) : 0.0F;
      const float plain_scaled = open ? wide(narrow(static_cast<float>(dz * scale))) : 0.0F;
      for (std::size_t x = 0; x < 128; ++x) {
        const double to_q = dz * scale * k[key * 128 + x], to_k = dz * q[at * 128 + x];
        const std::size_t of_q = (place * heads + h) * 128 + x, of_k = i * 128 + x;
        if (open) {
          truth.dq[of_q] += to_q;
          terms.exact[of_k] += to_k;
          plain_dq[h * 128 + x] += plain_scaled * static_cast<float>(k[key * 128 + x]);
          terms.plain[of_k] += plain_dz * static_cast<float>(q[at * 128 + x]);
        }
        if (doubtful) {
          truth.doubt_dq[of_q] += std::abs(to_q);
          terms.doubt[of_k] += std::abs(to_k);
        }
      }
    }
  }
  truth.loss[place] = loss * c.loss_scale;
  truth.loss_error[place] = (1e-7 + 0x1p-23 * size) * weight * std::abs(c.loss_scale);
  for (std::size_t i = 0; i < heads * 128; ++i) {
    const auto value = static_cast<double>(plain_dq[i]);
    truth.plain_dq[place * heads * 128 + i] = c.e4m3 ? value : rounded(value);
  }
  return terms;
}

inline LossTruth find_loss_truth(const LossCase& c, const LossData& d) {
  const auto q = numbers_of(d.q, c.e4m3), k = numbers_of(d.k, c.e4m3);
  const auto rows = static_cast<std::size_t>(c.rows()), heads = static_cast<std::size_t>(c.heads);
  LossTruth truth;
  for (auto* of_rows : {&truth.loss, &truth.loss_error}) of_rows->assign(rows, 0.0);
  for (auto* of_queries : {&truth.dq, &truth.plain_dq, &truth.doubt_dq}) of_queries->assign(rows * heads * 128, 0.0);
  truth.dw.assign(rows * heads, 0.0);
  truth.dk.assign(d.d_index_k.begin(), d.d_index_k.end());
  truth.plain_dk = truth.dk;
  truth.doubt_dk.assign(truth.dk.size(), 0.0);
  std::vector<LossKeyTerms> terms(rows);
  parallel(rows, [&](std::size_t place) { terms[place] = differentiate_loss_row(c, d, q, k, place, truth); });
  for (const LossKeyTerms& of_row : terms) {
    for (std::size_t i = 0; i < of_row.key.size(); ++i) {
      if (of_row.key[i] < 0) continue;
      for (std::size_t x = 0; x < 128; ++x) {
        const std::size_t to = static_cast<std::size_t>(of_row.key[i]) * 128 + x, from = i * 128 + x;
        truth.dk[to] += of_row.exact[from];
        truth.doubt_dk[to] += of_row.doubt[from];
        truth.plain_dk[to] = static_cast<double>(static_cast<float>(truth.plain_dk[to]) + of_row.plain[from]);
      }
    }
  }
  return truth;
}

}  // namespace tandem::test

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "support/reference/detail.hpp"

namespace tandem::reference {

using namespace detail;

std::vector<float> decode_bf16(std::span<const std::uint16_t> bits) {
  std::vector<float> values(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits[i]) << 16;
    std::memcpy(&values[i], &word, sizeof word);
  }
  return values;
}

std::vector<float> decode_e4m3(std::span<const std::uint8_t> bits) {
  std::vector<float> values;
  for (const std::uint8_t code : bits) {
    // 1 sign, 4 exponent, 3 fraction; bias 7; S.1111.111 is NaN.
    const int exponent = (code >> 3) & 15;
    const int fraction = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    const double value = exponent == 15 && fraction == 7 ? std::numeric_limits<double>::quiet_NaN() : magnitude;
    values.push_back(static_cast<float>((code & 128) != 0 ? -value : value));
  }
  return values;
}

std::vector<double> scores(const Problem& p, std::int64_t row) {
  std::vector<double> result;
  for (std::int64_t key = p.begin[at(row)]; key < p.end[at(row)]; ++key) {
    double score = 0;
    for (std::int64_t h = 0; h < p.index_heads; ++h) {
      double z = dot(&p.index_q[at((row * p.index_heads + h) * index_dim)], &p.index_k[at(key * index_dim)], index_dim);
      if (p.relu && z < 0) z = 0;
      score += static_cast<double>(p.index_w[at(row * p.index_heads + h)]) * z;
    }
    result.push_back(key_scale(p, key) * score);
  }
  return result;
}

Topk topk(const Problem& p, std::int64_t row) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t begin = p.begin[at(row)];
  Topk result{{}, none, none, 0};
  if (p.end[at(row)] - begin <= p.topk) {
    result.keys.resize(at(std::max<std::int64_t>(p.end[at(row)] - begin, 0)));
    std::iota(result.keys.begin(), result.keys.end(), begin);
    return result;
  }
  const std::vector<double> s = scores(p, row);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < std::ssize(s); ++i) {
    if (!std::isnan(s[at(i)])) order.push_back(i);
  }
  result.nans = std::ssize(s) - std::ssize(order);
  // Positions ascend already, and the sort is stable.
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return s[at(a)] > s[at(b)]; });
  const std::int64_t taken = std::min(p.topk, std::ssize(order));
  if (taken > 0) result.last_taken = s[at(order[at(taken - 1)])];
  if (taken < std::ssize(order)) result.first_left = s[at(order[at(taken)])];
  for (std::int64_t i = 0; i < taken; ++i) result.keys.push_back(begin + order[at(i)]);
  std::sort(result.keys.begin(), result.keys.end());
  return result;
}

Lists topk_lists(const Problem& p) {
  Lists lists(at(p.rows));
  for_rows({0, p.rows}, 0, [&](std::int64_t row) { lists[at(row)] = topk(p, row).keys; });
  return lists;
}

double score_bound(const Problem& p, std::int64_t row, std::int64_t key) {
  double magnitude = 0;
  for (std::int64_t h = 0; h < p.index_heads; ++h) {
    double sum = 0;
    for (std::int64_t c = 0; c < index_dim; ++c) {
      const double q = p.index_q[at((row * p.index_heads + h) * index_dim + c)];
      sum += std::fabs(q * static_cast<double>(p.index_k[at(key * index_dim + c)]));
    }
    magnitude += std::fabs(static_cast<double>(p.index_w[at(row * p.index_heads + h)])) * sum;
  }
  const std::int64_t roundings = index_dim + p.index_heads + (p.index_k_scale.empty() ? 2 : 3);
  const double nu = static_cast<double>(roundings) * 0x1p-24;
  return nu / (1 - nu) * magnitude * std::fabs(key_scale(p, key));
}

SetVerdict compare_topk(const Problem& p, std::int64_t row, std::span<const std::int64_t> selected) {
  const Topk wanted = topk(p, row);
  std::vector<std::int64_t> got(selected.begin(), selected.end());
  std::sort(got.begin(), got.end());
  if (got == wanted.keys) return SetVerdict::equal;
  const std::int64_t begin = p.begin[at(row)];
  if (got.size() != wanted.keys.size() || std::adjacent_find(got.begin(), got.end()) != got.end() ||
      got.front() < begin || got.back() >= p.end[at(row)]) {
    return SetVerdict::mismatch;
  }
  const std::vector<double> s = scores(p, row);
  std::vector<std::int64_t> extra, missing;
  std::set_difference(got.begin(), got.end(), wanted.keys.begin(), wanted.keys.end(), std::back_inserter(extra));
  std::set_difference(wanted.keys.begin(), wanted.keys.end(), got.begin(), got.end(), std::back_inserter(missing));
  double best_extra = std::numeric_limits<double>::infinity();
  double worst_missing = -best_extra;
  for (const std::int64_t key : extra) {
    if (std::isnan(s[at(key - begin)])) return SetVerdict::mismatch;
    best_extra = std::min(best_extra, s[at(key - begin)] + score_bound(p, row, key));
  }
  for (const std::int64_t key : missing) {
    worst_missing = std::max(worst_missing, s[at(key - begin)] - score_bound(p, row, key));
  }
  return worst_missing <= best_extra ? SetVerdict::near_tie : SetVerdict::mismatch;
}

}  // namespace tandem::reference

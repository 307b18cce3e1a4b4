// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/kernel_inputs.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "tandem/encode.hpp"
#include "tandem/noise.hpp"

namespace tandem::cli {
namespace {

using RowMaker = std::function<void(std::int64_t row, float* values)>;

enum class Part : std::uint64_t { index_q = 1, index_w, index_k, scores, q, kv, lists, dout };

Noise noise_of(const ComputeJob& job, Part part, std::int64_t row) {
  return Noise(job.seed).at(static_cast<std::uint64_t>(part), static_cast<std::uint64_t>(row));
}

RowMaker noise_rows(const ComputeJob& job, Part part, std::int64_t width, float scale) {
  return [&job, part, width, scale](std::int64_t row, float* values) {
    noise_of(job, part, row).fill(values, static_cast<std::size_t>(width), scale);
  };
}

/// Indexer inputs as numbers, before they are scaled for e4m3.
struct IndexMakers {
  RowMaker q, w, k;
};

/// Landed rows as six digits of four bits, which every type holds exactly: the product of a key's digits with the
/// digits' weights in a query is the row, but for a power of two.
constexpr int digits = 6;
float digit_weight(int digit) { return std::ldexp(1.0F, 2 * digit - 6); }  // half of it in the query, half in the key
float digit_of(std::int64_t number, int digit) {
  return static_cast<float>(number >> (4 * digit) & 15) * digit_weight(digit);
}

/// Columns of queries and keys that hold cosines and sines of positions: their product falls off with the distance,
/// like a bell.
class Nearness {
 public:
  static constexpr std::int64_t columns = 64;

  Nearness(std::int64_t keys, std::int64_t heads)
      : period_(2.0 * static_cast<double>(std::max<std::int64_t>(keys, 2))) {
    // Not so narrow that there are too few harmonics for it, not wider than the sequence.
    const double width = std::clamp(text_window / 2.0, period_ / 48, period_ / 8);
    double sum = 0;
    for (int i = 0; i < harmonics; ++i) {
      const double x = angle(i, 1) * width;
      weights_[i] = std::exp(-x * x / 2);
      sum += weights_[i];
    }
    // Beside the noise of so many heads: about text_share of 2048 keys of 65536 are near then, more of fewer keys.
    const double strength = 25 / std::sqrt(static_cast<double>(heads));
    for (double& weight : weights_) weight = std::sqrt(strength * weight / sum);
  }

  void fill(std::int64_t position, float* out) const {
    for (int i = 0; i < harmonics; ++i) {
      const double a = angle(i, position);
      *out++ = static_cast<float>(weights_[i] * std::cos(a));
      *out++ = static_cast<float>(weights_[i] * std::sin(a));
    }
  }

 private:
  static constexpr int harmonics = columns / 2;

  double angle(int harmonic, std::int64_t position) const {
    return 2 * std::numbers::pi * (harmonic + 1) * static_cast<double>(position) / period_;
  }

  double period_;
  double weights_[harmonics] = {};
};

IndexMakers near_makers(const ComputeJob& job, const QueryRows& rows) {
  constexpr std::int64_t noise_columns = index_dim - Nearness::columns;
  const std::int64_t heads = job.shape.index_heads;
  const auto nearness = std::make_shared<const Nearness>(rows.keys, heads);
  const RowMaker weights =
      noise_rows(job, Part::index_w, heads, 1.0F / std::sqrt(static_cast<float>(heads * index_dim)));
  IndexMakers makers;
  makers.q = [&job, &rows, nearness, heads](std::int64_t row, float* values) {
    const Noise noise = noise_of(job, Part::index_q, row);
    float near[Nearness::columns];
    nearness->fill(rows.position[static_cast<std::size_t>(row)] - 1, near);
    for (std::int64_t h = 0; h < heads; ++h, values += index_dim) {
      noise.at(static_cast<std::uint64_t>(h)).fill(values, noise_columns, 1.0F);
      std::copy_n(near, Nearness::columns, values + noise_columns);
    }
  };
  makers.k = [&job, nearness](std::int64_t row, float* values) {
    noise_of(job, Part::index_k, row).fill(values, noise_columns, 1.0F);
    nearness->fill(row, values + noise_columns);
  };
  makers.w = [weights, heads](std::int64_t row, float* values) {
    weights(row, values);
    for (std::int64_t h = 0; h < heads; ++h) values[h] = std::fabs(values[h]);
  };
  return makers;
}

IndexMakers ordered_makers(const ComputeJob& job, Pattern pattern) {
  const std::int64_t heads = job.shape.index_heads;
  const bool equal = pattern == Pattern::equal;
  RowMaker q = [heads, equal](std::int64_t, float* values) {
    std::fill_n(values, heads * index_dim, 0.0F);
    for (std::int64_t h = 0; h < heads; ++h, values += index_dim) {
      for (int d = 0; d < digits; ++d) values[d] = equal ? 1.0F : digit_weight(d);
    }
  };
  RowMaker k = [equal](std::int64_t row, float* values) {
    std::fill_n(values, index_dim, 0.0F);
    for (int d = 0; d < digits; ++d) values[d] = equal ? 1.0F : digit_of(row, d);
  };
  RowMaker w = [heads](std::int64_t, float* values) { std::fill_n(values, heads, 1.0F); };
  return {std::move(q), std::move(w), std::move(k)};
}

IndexMakers index_makers(const ComputeJob& job, const QueryRows& rows, Pattern pattern) {
  if (pattern == Pattern::text) return near_makers(job, rows);
  if (pattern != Pattern::random) return ordered_makers(job, pattern);
  const std::int64_t heads = job.shape.index_heads;
  IndexMakers makers;
  makers.q = noise_rows(job, Part::index_q, heads * index_dim, 1.0F);
  makers.w = noise_rows(job, Part::index_w, heads, 1.0F / std::sqrt(static_cast<float>(heads * index_dim)));
  makers.k = noise_rows(job, Part::index_k, index_dim, 1.0F);
  return makers;
}

/// In e4m3: the same numbers, each vector divided by a scale, which goes with the key, or into the head's weight.
IndexTensors scaled_tensors(const RowFiller& filler, const IndexMakers& makers, std::int64_t rows, std::int64_t keys,
                            std::int64_t heads) {
  IndexTensors t;
  t.q = filler.make(DType::f8e4m3, {rows, heads, index_dim}, [&](std::int64_t row, float* values) {
    makers.q(row, values);
    for (std::int64_t h = 0; h < heads; ++h) scale_down(values + h * index_dim, index_dim);
  });
  t.w = filler.make(DType::f32, {rows, heads}, [&](std::int64_t row, float* values) {
    thread_local std::vector<float> q;
    q.resize(static_cast<std::size_t>(heads * index_dim));
    makers.q(row, q.data());
    makers.w(row, values);
    for (std::int64_t h = 0; h < heads; ++h) values[h] *= scale_down(q.data() + h * index_dim, index_dim);
  });
  t.k = filler.make(DType::f8e4m3, {keys, index_dim}, [&](std::int64_t row, float* values) {
    makers.k(row, values);
    scale_down(values, index_dim);
  });
  t.k_scale = filler.make(DType::f32, {keys}, [&](std::int64_t row, float* value) {
    float key[index_dim];
    makers.k(row, key);
    *value = scale_down(key, index_dim);
  });
  return t;
}

/// `count` distinct numbers of [begin, end) are added to the set bits of `chosen`, none of which may be among them.
void choose(const std::function<std::uint64_t()>& draw, std::int64_t begin, std::int64_t end, std::int64_t count,
            std::vector<std::uint64_t>& chosen) {
  const auto size = static_cast<std::uint64_t>(end - begin);
  const auto bit = [&](std::int64_t key) { return std::uint64_t{1} << (key % 64); };
  // Of more than half it is quicker to choose those that are left out.
  const bool leave_out = 2 * count > end - begin;
  for (std::int64_t key = begin; leave_out && key < end; ++key) chosen[static_cast<std::size_t>(key / 64)] |= bit(key);
  for (std::int64_t left = leave_out ? end - begin - count : count; left > 0;) {
    const std::int64_t key = begin + static_cast<std::int64_t>(draw() % size);
    std::uint64_t& word = chosen[static_cast<std::size_t>(key / 64)];
    if (((word & bit(key)) != 0) != leave_out) continue;
    word ^= bit(key);
    --left;
  }
}

/// A row's list, ascending; returns its length.
std::int64_t fill_list(const ComputeJob& job, const QueryRows& rows, Pattern pattern, std::int64_t row,
                       std::int32_t* list, std::vector<std::uint64_t>& chosen) {
  const std::int64_t begin = rows.key_begin[static_cast<std::size_t>(row)];
  const std::int64_t end = rows.key_end[static_cast<std::size_t>(row)];
  const std::int64_t count = std::min(end - begin, job.shape.topk);
  chosen.assign(static_cast<std::size_t>(rows.keys + 63) / 64, 0);
  const Noise noise = noise_of(job, Part::lists, row);
  std::uint64_t drawn = 0;
  const auto draw = [&] { return noise.bits(drawn++); };
  if (pattern == Pattern::text) {
    const std::int64_t near_end = std::clamp(rows.position[static_cast<std::size_t>(row)], begin, end);
    const std::int64_t near_begin = std::max(begin, near_end - text_window);
    const std::int64_t far = (end - begin) - (near_end - near_begin);
    // What the far keys are too few for is near as well.
    const auto wanted = static_cast<std::int64_t>(std::llround(text_share * static_cast<double>(count)));
    const std::int64_t near = std::max(std::min(wanted, near_end - near_begin), count - far);
    choose(draw, near_begin, near_end, near, chosen);
    const std::int64_t before = near_begin - begin;
    const std::int64_t far_before =
        far == 0
            ? 0
            : std::llround(static_cast<double>(count - near) * static_cast<double>(before) / static_cast<double>(far));
    choose(draw, begin, near_begin, far_before, chosen);
    choose(draw, near_end, end, count - near - far_before, chosen);
  } else {
    choose(draw, begin, end, count, chosen);
  }
  std::int64_t length = 0;
  for (std::size_t word = 0; word < chosen.size(); ++word) {
    for (std::uint64_t bits = chosen[word]; bits != 0; bits &= bits - 1)
      list[length++] = static_cast<std::int32_t>(64 * word) + std::countr_zero(bits);
  }
  std::fill(list + length, list + job.shape.topk, -1);
  return length;
}

}  // namespace

IndexTensors make_index_tensors(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows,
                                Pattern pattern) {
  const std::int64_t heads = job.shape.index_heads;
  const IndexMakers makers = index_makers(job, rows, pattern);
  const bool scaled = job.index_dtype == DType::f8e4m3;
  const bool exact = pattern == Pattern::ascending || pattern == Pattern::equal;
  if (scaled && !exact) return scaled_tensors(filler, makers, rows.rows, rows.keys, heads);
  IndexTensors t;
  t.q = filler.make(job.index_dtype, {rows.rows, heads, index_dim}, makers.q);
  t.w = filler.make(DType::f32, {rows.rows, heads}, makers.w);
  t.k = filler.make(job.index_dtype, {rows.keys, index_dim}, makers.k);
  if (scaled) t.k_scale = filler.make(DType::f32, {rows.keys}, [](std::int64_t, float* value) { *value = 1.0F; });
  return t;
}

Tensor make_scores(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows, Pattern pattern) {
  return filler.make(DType::f32, {rows.rows, rows.keys}, [&](std::int64_t row, float* values) {
    if (pattern == Pattern::ascending || pattern == Pattern::equal) {
      for (std::int64_t key = 0; key < rows.keys; ++key)
        values[key] = pattern == Pattern::equal ? 1.0F : static_cast<float>(key);
      return;
    }
    noise_of(job, Part::scores, row).fill(values, static_cast<std::size_t>(rows.keys), 1.0F);
    if (pattern == Pattern::random) return;
    // Those that a text would select are above all others.
    thread_local std::vector<std::int32_t> list;
    thread_local std::vector<std::uint64_t> chosen;
    list.resize(static_cast<std::size_t>(job.shape.topk));
    const std::int64_t length = fill_list(job, rows, pattern, row, list.data(), chosen);
    for (std::int64_t i = 0; i < length; ++i) values[list[static_cast<std::size_t>(i)]] += 6.0F;
  });
}

AttentionTensors make_attention_tensors(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows,
                                        Pattern pattern) {
  const ModelShape& shape = job.shape;
  AttentionTensors t;
  t.q =
      filler.make(job.dtype, {rows.rows, shape.heads, shape.dim}, noise_rows(job, Part::q, shape.heads * shape.dim, 1));
  t.kv = filler.make(job.dtype, {rows.keys, shape.dim}, noise_rows(job, Part::kv, shape.dim, 1));
  std::vector<std::int32_t> length(static_cast<std::size_t>(rows.rows));
  std::vector<std::atomic<std::uint64_t>> touched(static_cast<std::size_t>(rows.keys + 63) / 64);
  t.indices = filler.make({rows.rows, shape.topk}, [&](std::int64_t row, std::int32_t* list) {
    thread_local std::vector<std::uint64_t> chosen;
    length[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(fill_list(job, rows, pattern, row, list, chosen));
    for (std::size_t word = 0; word < chosen.size(); ++word) {
      if ((chosen[word] & ~touched[word].load(std::memory_order_relaxed)) != 0) touched[word] |= chosen[word];
    }
  });
  t.length = filler.table(length, 1);
  for (const auto& word : touched) t.touched_keys += std::popcount(word.load());
  return t;
}

Tensor make_dout(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows) {
  return filler.make(job.dtype, {rows.rows, job.shape.heads, value_dim},
                     noise_rows(job, Part::dout, job.shape.heads * value_dim, 1));
}

}  // namespace tandem::cli

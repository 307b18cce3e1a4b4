// SPDX-License-Identifier: Apache-2.0
#include "tandem/inputs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/random.hpp"
#include "tandem/comparison.hpp"

namespace tandem::cli {
namespace {

DsaJob small_job(DType dtype = DType::f32) {
  DsaJob job;
  job.shape = {3, 2, 576, 16};
  job.lengths = {50, 0, 33};
  job.dtype = dtype;
  job.seed = testing::test_rng()();
  return job;
}

DsaJob text_job(DType dtype = DType::f32) {
  DsaJob job = small_job(dtype);
  job.texts = {"the cat sat on the mat; the cat sat on the mat, again.", "", "another, shorter text, the cat sat"};
  for (std::size_t i = 0; i < 3; ++i) job.lengths[i] = static_cast<std::int64_t>(job.texts[i].size());
  return job;
}

std::vector<const Tensor*> tensors(const InputRows& r) {
  return {&r.inputs.q, &r.inputs.kv, &r.inputs.index_q, &r.inputs.index_k, &r.inputs.index_w, &r.dout};
}

bool same_row(const Tensor& a, std::int64_t i, const Tensor& b, std::int64_t j) {
  const std::size_t bytes = a.row_bytes();
  return std::memcmp(static_cast<const char*>(a.data()) + static_cast<std::size_t>(i) * bytes,
                     static_cast<const char*>(b.data()) + static_cast<std::size_t>(j) * bytes, bytes) == 0;
}

InputRows rows_of(const DsaJob& job, const SequenceLayout& layout, const std::vector<RowRange>& segments) {
  return InputGenerator(job).rows(Device::host(), layout, segments);
}

class Inputs : public ::testing::TestWithParam<bool> {
 protected:
  DsaJob job(DType dtype = DType::f32) const { return GetParam() ? text_job(dtype) : small_job(dtype); }
};

TEST_P(Inputs, ARowIsTheSameWhicheverRankMakesIt) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DsaJob j = job(dtype);
    const SequenceLayout whole = j.layout(1);
    const InputRows all = rows_of(j, whole, {{0, whole.total_rows()}});
    for (const Partition partition : {Partition::contiguous, Partition::zigzag}) {
      j.partition = partition;
      const SequenceLayout layout = j.layout(3);
      for (int rank = 0; rank < 3; ++rank) {
        const auto segments = layout.segments(rank);
        const InputRows part = rows_of(j, layout, {segments.begin(), segments.end()});
        for (std::int64_t row = 0; row < layout.rows(rank); ++row) {
          for (std::size_t t = 0; t < 6; ++t) {
            ASSERT_TRUE(same_row(*tensors(part)[t], row, *tensors(all)[t], layout.global_position(rank, row)))
                << "tensor " << t << " row " << row << " of rank " << rank;
          }
        }
      }
    }
  }
}

TEST_P(Inputs, PadsChangeNoTokenAndAreNan) {
  DsaJob j = job();
  const SequenceLayout tight = j.layout(1);
  const InputRows want = rows_of(j, tight, {{0, tight.total_rows()}});
  j.pad_to = 64;
  const SequenceLayout padded = j.layout(1);
  const InputRows got = rows_of(j, padded, {{0, padded.total_rows()}});
  std::int64_t token = 0;
  for (std::int64_t row = 0; row < padded.total_rows(); ++row) {
    for (std::size_t t = 0; t < 6; ++t) {
      if (padded.is_real(row)) {
        ASSERT_TRUE(same_row(*tensors(got)[t], row, *tensors(want)[t], token)) << row;
      } else {
        for (const double v : decode_row(*tensors(got)[t], row)) ASSERT_TRUE(std::isnan(v)) << row;
      }
    }
    token += padded.is_real(row) ? 1 : 0;
  }
  EXPECT_EQ(token, tight.total_rows());
}

TEST_P(Inputs, SeedAndDocumentMakeADifference) {
  DsaJob j = job();
  const SequenceLayout layout = j.layout(1);
  const std::int64_t second = layout.cu_seqlens()[2];
  const InputRows a = rows_of(j, layout, {{0, layout.total_rows()}});
  EXPECT_FALSE(same_row(a.inputs.q, 0, a.inputs.q, second));
  EXPECT_FALSE(same_row(a.dout, 0, a.dout, second));
  EXPECT_FALSE(same_row(a.inputs.kv, 0, a.inputs.kv, 1));
  ++j.seed;
  const InputRows b = rows_of(j, layout, {{0, 1}});
  for (std::size_t t = 0; t < 6; ++t) EXPECT_FALSE(same_row(*tensors(a)[t], 0, *tensors(b)[t], 0)) << t;
}

TEST_P(Inputs, HaveVarianceOne) {
  const DsaJob j = job();
  const SequenceLayout layout = j.layout(1);
  const InputRows rows = rows_of(j, layout, {{0, layout.total_rows()}});
  for (const std::size_t t : {0U, 1U, 2U, 3U, 5U}) {
    double sum = 0;
    double squares = 0;
    double count = 0;
    for (std::int64_t row = 0; row < layout.total_rows(); ++row) {
      for (const double v : decode_row(*tensors(rows)[t], row)) {
        sum += v;
        squares += v * v;
        ++count;
      }
    }
    EXPECT_NEAR(sum / count, 0.0, 0.2) << t;
    EXPECT_NEAR(squares / count, 1.0, 0.25) << t;
  }
}

TEST_P(Inputs, Bf16IsTheRoundedFp32) {
  const DsaJob j = job();
  const DsaJob rounded = [&] {
    DsaJob r = j;
    r.dtype = DType::bf16;
    return r;
  }();
  const SequenceLayout layout = j.layout(1);
  const InputRows a = rows_of(j, layout, {{0, 40}});
  const InputRows b = rows_of(rounded, layout, {{0, 40}});
  EXPECT_EQ(b.inputs.q.dtype(), DType::bf16);
  EXPECT_EQ(b.inputs.index_w.dtype(), DType::f32);
  for (std::int64_t row = 0; row < 40; ++row) {
    const std::vector<double> x = decode_row(a.inputs.kv, row);
    const std::vector<double> y = decode_row(b.inputs.kv, row);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::fabs(x[i] - y[i]), std::fabs(x[i]) * 0x1p-8);
  }
}
// q . k as scaled is that of the fp32 inputs, up to the rounding of both.
TEST_P(Inputs, E4m3IsTheScaledAndRoundedFp32) {
  const DsaJob j = job();
  DsaJob coded = j;
  coded.index_dtype = DType::f8e4m3;
  coded.pad_to = 60;
  const SequenceLayout layout = j.layout(1);
  const InputRows a = rows_of(j, layout, {{0, 40}});
  const InputRows b = rows_of(coded, coded.layout(1), {{0, 40}});
  EXPECT_FALSE(a.inputs.index_k_scale.valid());
  EXPECT_EQ(b.inputs.index_q.dtype(), DType::f8e4m3);
  EXPECT_EQ(b.inputs.index_k.dtype(), DType::f8e4m3);
  const auto largest = [](const std::vector<double>& values, std::size_t begin) {
    double most = 0;
    for (std::size_t i = begin; i < begin + 128; ++i) most = std::max(most, std::fabs(values[i]));
    return most;
  };
  const auto expect_near = [&](const std::vector<double>& codes, const std::vector<double>& want, std::size_t begin,
                               double scale) {
    EXPECT_EQ(largest(codes, begin), 448);
    for (std::size_t i = begin; i < begin + 128; ++i) {
      // 4 significant bits; below 2^-6 steps of 2^-9.
      const double step = std::max(std::fabs(want[i]) * 0x1p-4, scale * 0x1p-10);
      ASSERT_LE(std::fabs(codes[i] * scale - want[i]), 1.001 * step);
    }
  };
  for (std::int64_t row = 0; row < 40; ++row) {
    EXPECT_TRUE(same_row(a.inputs.kv, row, b.inputs.kv, row));
    const std::vector<double> k = decode_row(a.inputs.index_k, row);
    expect_near(decode_row(b.inputs.index_k, row), k, 0, decode_row(b.inputs.index_k_scale, row)[0]);
    const std::vector<double> q = decode_row(a.inputs.index_q, row);
    const std::vector<double> w = decode_row(a.inputs.index_w, row);
    const std::vector<double> scaled_w = decode_row(b.inputs.index_w, row);
    for (std::size_t h = 0; h < w.size(); ++h) {
      const double scale = largest(q, 128 * h) / 448;
      EXPECT_NEAR(scaled_w[h], w[h] * scale, 1e-6 * std::fabs(w[h] * scale));
      expect_near(decode_row(b.inputs.index_q, row), q, 128 * h, scale);
    }
  }
  const InputRows pad = rows_of(coded, coded.layout(1), {{58, 59}});
  EXPECT_TRUE(std::isnan(decode_row(pad.inputs.index_k_scale, 0)[0]));
  EXPECT_TRUE(std::isnan(decode_row(pad.inputs.index_k, 0)[5]));
}
INSTANTIATE_TEST_SUITE_P(NoiseAndText, Inputs, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "text" : "noise"; });

double dot(const std::vector<double>& a, const std::vector<double>& b, std::size_t begin) {
  double sum = 0;
  for (std::size_t i = begin; i < b.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// What makes scores those of text: the columns without RoPE know the last bytes alone, wherever they stand.
TEST(TextInputs, LikeContextsAreAlikeAndAttractEachOther) {
  DsaJob job = text_job();
  const SequenceLayout layout = job.layout(1);
  const std::int64_t first = 16;          // "...at on the" of the first half,
  const std::int64_t again = first + 24;  // and of the second
  ASSERT_EQ(job.texts[0].substr(first - 7, 8), job.texts[0].substr(again - 7, 8));
  // Random matrices may favour another key once in a while, one of the 39 others by chance alone once in 40 times.
  constexpr int draws = 20;
  int wins = 0;
  for (int draw = 0; draw < draws; ++draw, ++job.seed) {
    const InputRows rows = rows_of(job, layout, {{0, layout.total_rows()}});
    const std::vector<double> key = decode_row(rows.inputs.index_k, first);
    const std::vector<double> same = decode_row(rows.inputs.index_k, again);
    for (std::size_t c = 64; c < 128; ++c) EXPECT_EQ(key[c], same[c]);
    EXPECT_NE(std::vector<double>(key.begin(), key.begin() + 64), std::vector<double>(same.begin(), same.begin() + 64));
    const std::vector<double> query = decode_row(rows.inputs.index_q, again);
    double others = 0;
    for (std::int64_t row = 0; row < again; ++row) {
      if (row != first) others = std::max(others, dot(query, decode_row(rows.inputs.index_k, row), 64));
    }
    wins += dot(query, key, 64) > others ? 1 : 0;
  }
  EXPECT_GE(wins, 8) << "of " << draws;
}

// RoPE: q.k of two rotated vectors depends on their distance, so norms stay.
TEST(TextInputs, RotationKeepsLengths) {
  DsaJob job = text_job();
  job.texts = {std::string(100, 'a'), "", ""};
  job.lengths = {100, 0, 0};
  const SequenceLayout layout = job.layout(1);
  const InputRows rows = rows_of(job, layout, {{0, 100}});
  const auto squares = [&](std::int64_t row) {
    const std::vector<double> k = decode_row(rows.inputs.kv, row);
    return dot(k, k, 512);
  };
  EXPECT_NEAR(squares(20), squares(90), 1e-4 * squares(20));
  EXPECT_FALSE(same_row(rows.inputs.kv, 20, rows.inputs.kv, 90));
}

}  // namespace
}  // namespace tandem::cli

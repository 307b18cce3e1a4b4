// SPDX-License-Identifier: Apache-2.0
// The selection from given scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_case.hpp"

namespace tandem::testing {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

struct Given {
  std::int64_t keys = 0;
  std::vector<float> scores;  ///< [rows, keys]
  std::vector<std::int64_t> begin, end;
  std::int64_t rows() const { return std::ssize(begin); }
};

ScoreMatrix matrix_of(const Given& given, std::int64_t topk) {
  return {from_floats(DType::f32, {given.rows(), given.keys}, given.scores), given.begin, given.end, topk, {}};
}

TopkLists run(const Given& given, std::int64_t topk, int threads = 2) {
  Runner runner(threads);
  const TopkLists lists = poisoned_lists(given.rows(), topk);
  detail::cpu::select_topk(runner.context, matrix_of(given, topk), lists);
  return lists;
}

/// By sorting all that a row sees.
std::vector<std::int64_t> best_of(const Given& given, std::int64_t row, std::int64_t topk) {
  const auto t = static_cast<std::size_t>(row);
  std::vector<std::int64_t> keys;
  const bool takes_all = given.end[t] - given.begin[t] <= topk;
  const float* scores = given.scores.data() + row * given.keys;
  for (std::int64_t key = given.begin[t]; key < given.end[t]; ++key) {
    if (takes_all || !std::isnan(scores[key])) keys.push_back(key);
  }
  if (takes_all) return keys;
  std::stable_sort(keys.begin(), keys.end(), [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; });
  keys.resize(std::min(keys.size(), static_cast<std::size_t>(topk)));
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::int64_t nans_of(const Given& given, std::int64_t topk) {
  std::int64_t nans = 0;
  for (std::int64_t row = 0; row < given.rows(); ++row) {
    const auto t = static_cast<std::size_t>(row);
    if (given.end[t] - given.begin[t] <= topk) continue;
    for (std::int64_t key = given.begin[t]; key < given.end[t]; ++key) {
      nans += std::isnan(given.scores[static_cast<std::size_t>(row * given.keys + key)]) ? 1 : 0;
    }
  }
  return nans;
}

void expect_best(const Given& given, std::int64_t topk) {
  const TopkLists lists = run(given, topk);
  for (std::int64_t row = 0; row < given.rows(); ++row) {
    const std::vector<std::int64_t> wanted = best_of(given, row, topk);
    EXPECT_EQ(list_of(lists, row), wanted) << "row " << row << ", K " << topk;
    const std::int32_t* list = lists.indices.data_as<std::int32_t>() + row * topk;
    for (std::int64_t i = std::ssize(wanted); i < topk; ++i) EXPECT_EQ(list[i], -1);
  }
  EXPECT_EQ(*lists.nan_count.data_as<std::int64_t>(), nans_of(given, topk));
}

/// Rows that see all, none, a few, and stretches in the middle.
Given random_scores(std::int64_t rows, std::int64_t keys, const std::vector<float>& values) {
  auto rng = test_rng(70);
  Given given;
  given.keys = keys;
  for (std::int64_t i = 0; i < rows * keys; ++i) given.scores.push_back(values[rng() % values.size()]);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto a = static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(keys + 1));
    const auto b = static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(keys + 1));
    given.begin.push_back(row == 0 ? 0 : std::min(a, b));
    given.end.push_back(row == 0 ? keys : std::max(a, b));
  }
  return given;
}

TEST(SelectTopk, TakesTheBestOfWhatARowSees) {
  auto rng = test_rng(71);
  for (const std::vector<float>& values :
       {normal(rng, 5000, DType::f32), std::vector<float>{1, 2}, {0.0F, -0.0F}, {NAN, 3, -inf, inf, NAN, -1}, {NAN}}) {
    const Given given = random_scores(40, 600, values);
    for (const std::int64_t topk : {1, 5, 64, 300, 599, 600, 700}) expect_best(given, topk);
  }
}

TEST(SelectTopk, ThreadsChangeNoBit) {
  auto rng = test_rng(72);
  const Given given = random_scores(50, 400, normal(rng, 300, DType::f32));
  const TopkLists wanted = run(given, 30, 1);
  for (const int threads : {2, 5}) {
    const TopkLists lists = run(given, 30, threads);
    EXPECT_EQ(bytes_of(lists.indices), bytes_of(wanted.indices));
    EXPECT_EQ(bytes_of(lists.length), bytes_of(wanted.length));
  }
}

TEST(SelectTopk, RowsMayLieApart) {
  const Given given = random_scores(10, 50, {1, 2, 3, 4});
  const Buffer memory = poisoned_buffer(10 * 64 * sizeof(float));
  ScoreMatrix apart = matrix_of(given, 7);
  const Tensor dense = apart.scores;
  apart.scores = Tensor::from_raw(memory.data(), DType::f32, {10, 50}, {64, 1});
  for (std::int64_t row = 0; row < 10; ++row)
    std::memcpy(apart.scores.rows(row, 1).data(), dense.rows(row, 1).data(), 50 * sizeof(float));
  Runner runner;
  const TopkLists lists = poisoned_lists(10, 7);
  detail::cpu::select_topk(runner.context, apart, lists);
  EXPECT_EQ(bytes_of(lists.indices), bytes_of(run(given, 7).indices));
}

TEST(SelectTopk, OfAKernelSetAndItsRefusals) {
  const Device device = Device::host();
  const Stream stream = device.create_stream();
  const auto kernels = cpu_kernels({.threads = 1});
  const Given given = random_scores(4, 30, {1, 2, 3});
  const TopkLists lists = poisoned_lists(4, 5);
  const ScoreMatrix good = matrix_of(given, 5);
  kernels->select_topk(good, lists, stream);
  stream.synchronize(Deadline::after(std::chrono::seconds(10)));
  EXPECT_EQ(bytes_of(lists.indices), bytes_of(run(given, 5).indices));
  EXPECT_EQ(kernels->scratch_bytes(), 0U);

  const auto message = [&](const ScoreMatrix& in, const TopkLists& out) -> std::string {
    try {
      kernels->select_topk(in, out, stream);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "accepted";
  };
  ScoreMatrix bad = good;
  bad.topk = 0;
  EXPECT_THAT(message(bad, lists), ::testing::HasSubstr("topk: "));
  bad = good;
  bad.scores = zeros(DType::f64, {4, 30});
  EXPECT_THAT(message(bad, lists), ::testing::HasSubstr("scores: expected f32 [*, *]"));
  bad = good;
  bad.key_end = std::span(given.end).first(3);
  EXPECT_THAT(message(bad, lists), ::testing::HasSubstr("key_begin and key_end: expected 4 entries each"));
  const std::vector<std::int64_t> beyond(4, 31);
  bad = good;
  bad.key_end = beyond;
  EXPECT_THAT(message(bad, lists), ::testing::HasSubstr("which is not within the 30 landed rows"));
  EXPECT_THAT(message(good, poisoned_lists(4, 6)), ::testing::HasSubstr("indices: expected i32 [4, 5]"));
}

/// A user's kernels, which need not have a selection of their own.
class NoKernels final : public KernelSet {
 public:
  std::string name() const override { return "none"; }
  std::uint32_t numerics_version() const override { return 0; }
  void indexer_topk(const IndexerStep&, const IndexerInputs&, const TopkState&, const TopkLists&,
                    const Stream&) override {}
  void sparse_mla_forward(const AttentionInputs&, const AttentionOutputs&, const Stream&) override {}
  void sparse_mla_backward(RowRange, const AttentionInputs&, const AttentionGradients&, const Stream&) override {}
  void dense_head_sums(RowRange, const IndexerInputs&, const AttentionInputs&, const Tensor&, const Stream&) override {}
  void indexer_loss(const IndexerInputs&, const LossSupport&, const IndexerLoss&, const Stream&) override {}
};

TEST(SelectTopk, IsOptional) {
  try {
    NoKernels().select_topk({}, {}, Stream());
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("kernel set none: no selection"));
  }
}

}  // namespace
}  // namespace tandem::testing

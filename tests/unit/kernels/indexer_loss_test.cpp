// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernel_case.hpp"

namespace tandem::testing {
namespace {

struct LossResults {
  Tensor loss, d_index_q, d_index_w, d_index_k;
};

LossResults allocate_loss(const Case& c) {
  return {poisoned(DType::f64, {c.p.rows}), poisoned(c.gradient_dtype(), {c.p.rows, c.p.index_heads, index_dim}),
          poisoned(DType::f32, {c.p.rows, c.p.index_heads}), zeros(DType::f32, {c.p.keys, index_dim})};
}

/// Positive sums of some heads' probabilities, by row; a few entries 0 and a few tiny.
std::vector<std::vector<double>> random_sums(std::mt19937_64& rng, const reference::Lists& lists) {
  std::vector<std::vector<double>> sums;
  std::uniform_real_distribution<float> uniform(0, 1);
  for (const auto& list : lists) {
    auto& row = sums.emplace_back();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto kind = rng() % 10;
      row.push_back(static_cast<double>(kind == 0 ? 0.0F : kind == 1 ? 1e-12F * uniform(rng) : uniform(rng)));
    }
  }
  return sums;
}

Tensor sums_tensor(const std::vector<std::vector<double>>& sums, RowRange rows, std::int64_t width) {
  const Tensor t = poisoned(DType::f32, {rows.size(), width});
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    const auto& row = sums[static_cast<std::size_t>(rows.begin + r)];
    for (std::size_t i = 0; i < row.size(); ++i) {
      t.data_as<float>()[r * width + static_cast<std::int64_t>(i)] = static_cast<float>(row[i]);
    }
  }
  return t;
}

reference::Lists visible_lists(const Case& c) {
  reference::Lists lists;
  for (std::size_t t = 0; t < static_cast<std::size_t>(c.p.rows); ++t) {
    auto& list = lists.emplace_back(static_cast<std::size_t>(c.p.end[t] - c.p.begin[t]));
    std::iota(list.begin(), list.end(), c.p.begin[t]);
  }
  return lists;
}

/// `want` is brought to the side of relu's kinks that the kernel saw.
void expect_reference(const Case& c, const LossResults& r, reference::IndexerLoss want) {
  const bool bf16 = c.index_dtype == DType::bf16;
  const std::vector<double> loss = values_of(r.loss);
  double size = 0;
  for (std::size_t t = 0; t < loss.size(); ++t) {
    size += want.magnitude[t];
    EXPECT_NEAR(loss[t], want.loss[t], 2e-5 * want.magnitude[t] + 1e-12) << "row " << t;
  }
  EXPECT_GT(size, 0);
  EXPECT_LE(want.kinks.size(), 10U) << "of 20000 arguments one is expected";
  reference::settle_kinks(c.p, {0, c.p.rows}, want, values_of(r.d_index_q));
  EXPECT_LE(relative_error(r.d_index_q, want.d_index_q), bf16 ? 4e-3 : 2e-5);
  EXPECT_LE(relative_error(r.d_index_w, want.d_index_w), 2e-5);
  EXPECT_LE(relative_error(r.d_index_k, want.d_index_k), 2e-5);
}

class IndexerLossTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, IndexerLossTest, ::testing::Values(DType::f32, DType::bf16, DType::f8e4m3),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(IndexerLossTest, MatchesTheReferenceSparseAndDense) {
  for (const std::int64_t heads : {1, 2, 5}) {
    for (const bool relu : {true, false}) {
      auto rng = test_rng(70 + static_cast<std::uint64_t>(heads));
      Case c = make_case(
          rng, {.rows = 50, .keys = 150, .heads = 1, .index_heads = heads, .dim = 16, .topk = 70, .relu = relu},
          GetParam());
      c.p.upstream = 0.7;
      const reference::Lists selected = reference::topk_lists(c.p);
      const reference::Lists visible = visible_lists(c);
      for (const bool sparse : {true, false}) {
        SCOPED_TRACE(::testing::Message() << "Hi " << heads << ", relu " << relu << ", sparse " << sparse);
        const reference::Lists& lists = sparse ? selected : visible;
        const std::int64_t width = sparse ? 70 : 130;
        const auto sums = random_sums(rng, lists);
        const LossResults r = allocate_loss(c);
        const TopkLists tensors = lists_tensor(lists, width);
        const LossSupport support = sparse ? LossSupport{tensors.indices, tensors.length} : LossSupport{};
        Runner runner(2);
        detail::cpu::indexer_loss(runner.context, c.indexer(), support,
                                  {{0, c.p.rows},
                                   sums_tensor(sums, {0, c.p.rows}, width),
                                   c.p.loss_scale,
                                   c.p.upstream,
                                   r.loss,
                                   r.d_index_q,
                                   r.d_index_w,
                                   r.d_index_k});
        expect_reference(c, r, reference::indexer_loss(c.p, &lists, {0, c.p.rows}, 0, &sums));
      }
    }
  }
}

TEST_P(IndexerLossTest, ThreadsChangeNoBitAndRowsMayComeInParts) {
  auto rng = test_rng(80);
  const Case c =
      make_case(rng, {.rows = 280, .keys = 300, .heads = 1, .index_heads = 2, .dim = 16, .topk = 12}, GetParam());
  const reference::Lists lists = reference::topk_lists(c.p);
  const TopkLists tensors = lists_tensor(lists, 12);
  const auto sums = random_sums(rng, lists);
  const auto run = [&](int threads, const std::vector<RowRange>& parts) {
    const LossResults r = allocate_loss(c);
    Runner runner(threads);
    for (const RowRange part : parts) {
      detail::cpu::indexer_loss(
          runner.context, c.indexer(), {tensors.indices, tensors.length},
          {part, sums_tensor(sums, part, 12), 1.0, 1.0, r.loss, r.d_index_q, r.d_index_w, r.d_index_k});
    }
    return r;
  };
  const LossResults whole = run(1, {{0, 280}});
  for (const int threads : {2, 3, 7}) {
    const LossResults r = run(threads, {{0, 280}});
    EXPECT_EQ(bytes_of(r.loss), bytes_of(whole.loss));
    EXPECT_EQ(bytes_of(r.d_index_q), bytes_of(whole.d_index_q));
    EXPECT_EQ(bytes_of(r.d_index_w), bytes_of(whole.d_index_w));
    EXPECT_EQ(bytes_of(r.d_index_k), bytes_of(whole.d_index_k));
  }
  const LossResults parts = run(2, {{100, 280}, {0, 1}, {1, 100}});
  EXPECT_EQ(bytes_of(parts.loss), bytes_of(whole.loss));
  EXPECT_EQ(bytes_of(parts.d_index_q), bytes_of(whole.d_index_q));
  EXPECT_EQ(bytes_of(parts.d_index_w), bytes_of(whole.d_index_w));
  EXPECT_LE(relative_error(parts.d_index_k, values_of(whole.d_index_k)), 1e-6);
}

TEST_P(IndexerLossTest, OutputsAreOptional) {
  auto rng = test_rng(81);
  const Case c = make_case(rng, {.rows = 20, .keys = 60, .heads = 1, .dim = 16, .topk = 5}, GetParam());
  const reference::Lists lists = reference::topk_lists(c.p);
  const TopkLists tensors = lists_tensor(lists, 5);
  const Tensor sums = sums_tensor(random_sums(rng, lists), {0, 20}, 5);
  const LossResults all = allocate_loss(c);
  const auto run = [&](const LossResults& r) {
    Runner runner;
    detail::cpu::indexer_loss(runner.context, c.indexer(), {tensors.indices, tensors.length},
                              {{0, 20}, sums, 1.0, 1.0, r.loss, r.d_index_q, r.d_index_w, r.d_index_k});
  };
  run(all);
  const LossResults one = allocate_loss(c);
  run({one.loss, {}, {}, {}});
  run({{}, one.d_index_q, {}, {}});
  run({{}, {}, one.d_index_w, {}});
  run({{}, {}, {}, one.d_index_k});
  EXPECT_EQ(bytes_of(one.loss), bytes_of(all.loss));
  EXPECT_EQ(bytes_of(one.d_index_q), bytes_of(all.d_index_q));
  EXPECT_EQ(bytes_of(one.d_index_w), bytes_of(all.d_index_w));
  EXPECT_EQ(bytes_of(one.d_index_k), bytes_of(all.d_index_k));
}

TEST(IndexerLossExact, TinySumsAreClampedBeforeTheyDivide) {
  auto rng = test_rng(82);
  const Case c =
      make_case(rng, {.rows = 2, .keys = 20, .heads = 1, .index_heads = 1, .dim = 16, .topk = 3}, DType::f32);
  const TopkLists tensors = lists_tensor({{1, 2, 3}, {4}}, 3);
  // Row 0 sums to 0: its target is 0 everywhere, so its loss is 0 and its gradient softmax. Row 1: target 1e-12 /
  // 1e-10.
  const Tensor sums = sums_tensor({{0, 0, 0}, {1e-12}}, {0, 2}, 3);
  const LossResults r = allocate_loss(c);
  Runner runner;
  detail::cpu::indexer_loss(runner.context, c.indexer(), {tensors.indices, tensors.length},
                            {{0, 2}, sums, 1.0, 1.0, r.loss, r.d_index_q, r.d_index_w, r.d_index_k});
  EXPECT_EQ(r.loss.data_as<double>()[0], 0);
  const double target = static_cast<double>(1e-12F) / 1e-10;
  EXPECT_NEAR(r.loss.data_as<double>()[1], target * std::log(target), 1e-12);
}

TEST(IndexerLossExact, ADeadRowHasNoLossAndNoGradient) {
  auto rng = test_rng(83);
  const Case c = make_case(rng, {.rows = 1, .keys = 20, .heads = 1, .dim = 16, .topk = 3}, DType::f32);
  const TopkLists tensors = lists_tensor({{}}, 3);
  const LossResults r = allocate_loss(c);
  Runner runner;
  detail::cpu::indexer_loss(
      runner.context, c.indexer(), {tensors.indices, tensors.length},
      {{0, 1}, poisoned(DType::f32, {1, 3}), 1.0, 1.0, r.loss, r.d_index_q, r.d_index_w, r.d_index_k});
  for (const Tensor& t : {r.loss, r.d_index_q, r.d_index_w, r.d_index_k}) {
    for (const double x : values_of(t)) ASSERT_EQ(x, 0);
  }
}

}  // namespace
}  // namespace tandem::testing

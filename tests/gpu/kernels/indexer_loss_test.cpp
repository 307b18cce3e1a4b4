// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <tuple>

#include "kernels_support.hpp"

namespace tandem::testing_gpu {
namespace {

using testing::lists_tensor;
using testing::poisoned;
using testing::test_rng;
using testing::values_of;

struct LossResults {
  Tensor loss, d_index_q, d_index_w, d_index_k;
};

LossResults allocate(const Case& c) {
  return {poisoned(DType::f64, {c.p.rows}), poisoned(c.gradient_dtype(), {c.p.rows, c.p.index_heads, index_dim}),
          poisoned(DType::f32, {c.p.rows, c.p.index_heads}), testing::zeros(DType::f32, {c.p.keys, index_dim})};
}

reference::Lists visible_lists(const Case& c) {
  reference::Lists lists;
  for (std::size_t t = 0; t < static_cast<std::size_t>(c.p.rows); ++t) {
    auto& list = lists.emplace_back(static_cast<std::size_t>(c.p.end[t] - c.p.begin[t]));
    std::iota(list.begin(), list.end(), c.p.begin[t]);
  }
  return lists;
}

/// Positive sums of some heads' probabilities, by row; a few entries 0 and a few tiny. NaN beyond a row's keys.
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

class LossOnGpu : public KernelsOnGpu {
 protected:
  LossResults run(const Case& c, const LossSupport& support, const std::vector<std::vector<double>>& sums,
                  std::int64_t width, bool gradients) const {
    const Case g = on_gpu(c);
    const LossResults start = allocate(c);
    LossResults r{up(start.loss), up(start.d_index_q), up(start.d_index_w), up(start.d_index_k)};
    const LossSupport there{up(support.indices), up(support.length)};
    IndexerLoss loss;
    loss.loss_scale = c.p.loss_scale;
    loss.upstream = c.p.upstream;
    loss.loss = r.loss;
    if (gradients) {
      loss.d_index_q = r.d_index_q;
      loss.d_index_w = r.d_index_w;
      loss.d_index_k = r.d_index_k;
    }
    const std::int64_t middle = c.p.rows / 3;
    for (const RowRange rows : {RowRange{middle, c.p.rows}, RowRange{0, middle}}) {
      loss.rows = rows;
      loss.head_sums = up(sums_tensor(sums, rows, width));
      const IndexerInputs in = indexer(g);
      kernels_->indexer_loss(in, there, loss, stream_);
      finish();
    }
    return {down(r.loss), down(r.d_index_q), down(r.d_index_w), down(r.d_index_k)};
  }

  /// `want` is brought to the side of relu's kinks that the kernel saw.
  static void expect_reference(const Case& c, const LossResults& r, reference::IndexerLoss want) {
    const std::vector<double> loss = values_of(r.loss);
    for (std::size_t t = 0; t < loss.size(); ++t) {
      EXPECT_NEAR(loss[t], want.loss[t], 2e-5 * want.magnitude[t] + 1e-12) << "row " << t;
    }
    reference::settle_kinks(c.p, {0, c.p.rows}, want, values_of(r.d_index_q));
    EXPECT_LE(testing::relative_error(r.d_index_q, want.d_index_q), c.index_dtype == DType::bf16 ? 4e-3 : 2e-5);
    EXPECT_LE(testing::relative_error(r.d_index_w, want.d_index_w), 2e-5);
    EXPECT_LE(testing::relative_error(r.d_index_k, want.d_index_k), 2e-5);
  }
};

TEST_P(LossOnGpu, MatchesTheReferenceSparseAndDense) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8e4m3}) {
    for (const auto& [heads, topk] :
         {std::tuple{1, 70}, {5, 70}, {16, 70}, {70, 70}, {8, 64}, {16, 128}, {32, 192}, {64, 128}}) {
      auto rng = test_rng(70 + static_cast<std::uint64_t>(heads + topk));
      const std::int64_t rows = heads > 16 ? 9 : 30;
      Case c = testing::make_case(
          rng,
          {.rows = rows, .keys = 300, .heads = 1, .index_heads = heads, .dim = 16, .topk = topk, .relu = heads != 16},
          dtype);
      c.p.upstream = 0.7;
      for (const bool sparse : {true, false}) {
        SCOPED_TRACE(::testing::Message() << "Hi " << heads << ", K " << topk << ", sparse " << sparse);
        const reference::Lists lists = sparse ? random_lists(rng, c) : visible_lists(c);
        const std::int64_t width = sparse ? topk : 300;
        const auto sums = random_sums(rng, lists);
        const TopkLists tensors = lists_tensor(lists, width);
        const LossSupport support = sparse ? LossSupport{tensors.indices, tensors.length} : LossSupport{};
        const auto want = reference::indexer_loss(c.p, &lists, {0, c.p.rows}, 0, &sums);
        const LossResults r = run(c, support, sums, width, true);
        expect_reference(c, r, want);
        // The loss alone has the same bits; nothing else is touched.
        const LossResults alone = run(c, support, sums, width, false);
        EXPECT_EQ(testing::bytes_of(alone.loss), testing::bytes_of(r.loss));
        EXPECT_EQ(testing::bytes_of(alone.d_index_q), testing::bytes_of(allocate(c).d_index_q));
      }
    }
  }
}

TEST_P(LossOnGpu, RowsWithoutKeysHaveNoLossAndNoGradient) {
  for (const auto& [dtype, heads, topk] : {std::tuple{DType::f32, 3, 6}, {DType::bf16, 8, 64}}) {
    auto rng = test_rng(80);
    Case c = testing::make_case(rng, {.rows = 4, .keys = 40, .heads = 1, .index_heads = heads, .dim = 16, .topk = topk},
                                dtype);
    const reference::Lists lists = {{}, {3, 4, 9}, {}, {0, 1, 2, 3, 4, 5}};
    std::fill_n(c.p.index_q.begin(), heads * index_dim, NAN);
    std::fill_n(c.p.index_w.begin(), heads, NAN);
    c.refresh();
    const auto sums = random_sums(rng, lists);
    const TopkLists tensors = lists_tensor(lists, topk);
    const LossResults r = run(c, {tensors.indices, tensors.length}, sums, topk, true);
    for (const std::int64_t t : {0, 2}) {
      EXPECT_EQ(r.loss.data_as<double>()[t], 0);
      for (const double x : values_of(r.d_index_q.rows(t, 1))) ASSERT_EQ(x, 0);
      for (const double x : values_of(r.d_index_w.rows(t, 1))) ASSERT_EQ(x, 0);
    }
    for (const double x : values_of(r.d_index_k)) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(LossOnGpu, ManyKeys) {
  for (const auto& [heads, topk] : {std::tuple{2, 2500}, {16, 2496}}) {
    auto rng = test_rng(81);
    Case c = testing::make_case(
        rng, {.rows = 3, .keys = 3000, .heads = 1, .index_heads = heads, .dim = 16, .topk = topk}, DType::bf16);
    std::fill(c.p.begin.begin(), c.p.begin.end(), 0);
    for (const bool sparse : {true, false}) {
      const reference::Lists lists = sparse ? random_lists(rng, c) : visible_lists(c);
      const auto sums = random_sums(rng, lists);
      const std::int64_t width = sparse ? topk : 3000;
      const TopkLists tensors = lists_tensor(lists, width);
      const LossSupport support = sparse ? LossSupport{tensors.indices, tensors.length} : LossSupport{};
      expect_reference(c, run(c, support, sums, width, true),
                       reference::indexer_loss(c.p, &lists, {0, c.p.rows}, 0, &sums));
    }
  }
}

/// Lists out of order stand beside others: a set may leave them to other kernels.
TEST_P(LossOnGpu, ListsOfSomeRowsOutOfOrder) {
  for (const DType dtype : {DType::bf16, DType::f8e4m3}) {
    auto rng = test_rng(82);
    const Case c =
        testing::make_case(rng, {.rows = 20, .keys = 200, .heads = 1, .index_heads = 32, .dim = 16, .topk = 64}, dtype);
    const reference::Lists lists = random_lists(rng, c);
    const auto sums = random_sums(rng, lists);
    reference::Lists turned = lists;
    auto turned_sums = sums;
    for (std::size_t t = 0; t < lists.size(); t += 3) {
      std::reverse(turned[t].begin(), turned[t].end());
      std::reverse(turned_sums[t].begin(), turned_sums[t].end());
    }
    const TopkLists tensors = lists_tensor(turned, 64);
    const LossResults r = run(c, {tensors.indices, tensors.length}, turned_sums, 64, true);
    expect_reference(c, r, reference::indexer_loss(c.p, &lists, {0, c.p.rows}, 0, &sums));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LossOnGpu, ::testing::ValuesIn(kernel_sets), name_of_set);
INSTANTIATE_TEST_SUITE_P(DeterministicKernels, LossOnGpu, ::testing::ValuesIn(deterministic_sets), name_of_set);

class DeterministicLoss : public LossOnGpu {};

TEST_P(DeterministicLoss, GradientsHaveTheSameBitsInEveryRun) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8e4m3}) {
    auto rng = test_rng(83);
    const Case c =
        testing::make_case(rng, {.rows = 150, .keys = 150, .heads = 1, .index_heads = 8, .dim = 16, .topk = 64}, dtype);
    for (const bool sparse : {true, false}) {
      const reference::Lists lists = sparse ? random_lists(rng, c) : visible_lists(c);
      const auto sums = random_sums(rng, lists);
      const std::int64_t width = sparse ? 64 : 150;
      const TopkLists tensors = lists_tensor(lists, width);
      const LossSupport support = sparse ? LossSupport{tensors.indices, tensors.length} : LossSupport{};
      const LossResults first = run(c, support, sums, width, true);
      for (int i = 0; i < 4; ++i) {
        const LossResults again = run(c, support, sums, width, true);
        ASSERT_EQ(testing::bytes_of(again.d_index_k), testing::bytes_of(first.d_index_k));
        ASSERT_EQ(testing::bytes_of(again.d_index_q), testing::bytes_of(first.d_index_q));
        ASSERT_EQ(testing::bytes_of(again.loss), testing::bytes_of(first.loss));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DeterministicLoss, ::testing::ValuesIn(deterministic_sets), name_of_set);

}  // namespace
}  // namespace tandem::testing_gpu

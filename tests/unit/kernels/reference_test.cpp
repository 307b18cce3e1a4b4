// SPDX-License-Identifier: Apache-2.0
// The oracle itself: its gradients against finite differences of its losses, its top-k against definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernel_case.hpp"

namespace tandem::testing {
namespace {

CaseShape small_shape() {
  return {.rows = 5, .keys = 9, .heads = 2, .index_heads = 2, .dim = 576, .topk = 4, .sink = true};
}

/// Compares d(loss)/d(input) with central differences at a few entries. Inputs are floats, so the step that was really
/// taken is measured.
template <class Loss>
void check_gradient(std::mt19937_64& rng, std::vector<float>& input, std::span<const double> gradient, const Loss& loss,
                    float step = 1e-2F) {
  ASSERT_EQ(input.size(), gradient.size());
  const double size = std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
  ASSERT_GT(size, 0);
  for (int trial = 0; trial < 12; ++trial) {
    const std::size_t i = rng() % input.size();
    const float kept = input[i];
    const auto at = [&](float value) {
      input[i] = value;
      return loss();
    };
    const float up = kept + step;
    const float down = kept - step;
    const double slope = (at(up) - at(down)) / (static_cast<double>(up) - static_cast<double>(down));
    input[i] = kept;
    EXPECT_NEAR(slope, gradient[i], 1e-3 * std::fabs(gradient[i]) + 1e-4 * size) << "entry " << i;
  }
}

TEST(Reference, AttentionGradientsMatchFiniteDifferences) {
  auto rng = test_rng(1);
  Case c = make_case(rng, small_shape(), DType::f32);
  const reference::Lists lists = {{0, 1}, {2, 3, 4}, {}, {1, 4, 6, 7}, {8}};
  const auto loss = [&] {
    const auto a = reference::attention(c.p, lists);
    return std::inner_product(a.out.begin(), a.out.end(), c.p.dout.begin(), 0.0);
  };
  const auto a = reference::attention(c.p, lists);
  check_gradient(rng, c.p.q, a.dq, loss);
  check_gradient(rng, c.p.kv, a.dkv, loss);
  check_gradient(rng, c.p.sink, a.dsink, loss);
  EXPECT_EQ(a.lse[2 * 2], static_cast<double>(c.p.sink[0])) << "a dead row's lse is the sink";
}

/// The least |q_h . k|: a difference that crosses 0 there is no slope.
double least_argument(const reference::Problem& p) {
  double least = INFINITY;
  for (std::size_t q = 0; q < p.index_q.size(); q += 128) {
    for (std::size_t k = 0; k < p.index_k.size(); k += 128) {
      least = std::min(least, std::fabs(std::inner_product(&p.index_q[q], &p.index_q[q] + 128, &p.index_k[k], 0.0)));
    }
  }
  return least;
}

TEST(Reference, IndexerLossGradientsMatchFiniteDifferences) {
  auto rng = test_rng(2);
  Case c = make_case(rng, small_shape(), DType::f32);
  while (least_argument(c.p) < 0.01) c = make_case(rng, small_shape(), DType::f32);
  for (float& w : c.p.index_w) w *= 0.3F;  // moderate scores, so that no probability is negligible
  c.p.upstream = 3;
  const reference::Lists lists = {{0, 1}, {2, 3, 4}, {}, {1, 4, 6, 7}, {8, 5}};
  for (const reference::Lists* support : {&lists, static_cast<const reference::Lists*>(nullptr)}) {
    const auto loss = [&] {
      const auto l = reference::indexer_loss(c.p, support, {0, c.p.rows});
      return 3 * std::accumulate(l.loss.begin(), l.loss.end(), 0.0);
    };
    const auto l = reference::indexer_loss(c.p, support, {0, c.p.rows});
    for (const double row : l.loss) EXPECT_GE(row, -1e-12) << "a divergence";
    check_gradient(rng, c.p.index_q, l.d_index_q, loss, 1e-4F);
    check_gradient(rng, c.p.index_k, l.d_index_k, loss, 1e-4F);
    check_gradient(rng, c.p.index_w, l.d_index_w, loss, 1e-4F);
  }
}

TEST(Reference, OutAndLseAreThoseOfTheDefinition) {
  auto rng = test_rng(3);
  Case c = make_case(rng, small_shape(), DType::f32);
  c.p.sink.clear();
  const reference::Lists lists(5, {3, 7});
  const auto a = reference::attention(c.p, lists);
  for (std::int64_t h = 0; h < 2; ++h) {
    double logit[2] = {0, 0};
    for (std::int64_t x = 0; x < 576; ++x) {
      const double q = c.p.q[static_cast<std::size_t>((4 * 2 + h) * 576 + x)];
      logit[0] += c.p.scale * q * static_cast<double>(c.p.kv[static_cast<std::size_t>(3 * 576 + x)]);
      logit[1] += c.p.scale * q * static_cast<double>(c.p.kv[static_cast<std::size_t>(7 * 576 + x)]);
    }
    const double sum = std::exp(logit[0]) + std::exp(logit[1]);
    EXPECT_NEAR(a.lse[static_cast<std::size_t>(4 * 2 + h)], std::log(sum), 1e-12);
    const double v0 = c.p.kv[3 * 576 + 511];
    const double v1 = c.p.kv[7 * 576 + 511];
    EXPECT_NEAR(a.out[static_cast<std::size_t>((4 * 2 + h) * 512 + 511)],
                (std::exp(logit[0]) * v0 + std::exp(logit[1]) * v1) / sum, 1e-12);
  }
}

TEST(Reference, ComparesSetsByTheRoundingBound) {
  auto rng = test_rng(4);
  Case c = make_case(rng, {.rows = 1, .keys = 12, .heads = 1, .index_heads = 1, .topk = 3}, DType::f32);
  reference::Problem& p = c.p;
  p.begin = {0};
  p.end = {12};
  std::fill(p.index_q.begin(), p.index_q.end(), 0.0F);
  std::fill(p.index_k.begin(), p.index_k.end(), 0.0F);
  p.index_q[0] = 1;
  p.index_w[0] = 1;
  const std::vector<float> score = {9, 8, 7, 7 - 1e-6F, 7, 5, 1, 2, 3, 4, 0, NAN};
  for (std::size_t i = 0; i < score.size(); ++i) p.index_k[i * 128] = score[i];
  using V = reference::SetVerdict;
  const auto judge = [&](std::vector<std::int64_t> set) { return reference::compare_topk(p, 0, set); };
  EXPECT_EQ(reference::topk(p, 0).nans, 1);
  EXPECT_EQ(judge({2, 0, 1}), V::equal);
  EXPECT_EQ(judge({0, 1, 4}), V::near_tie);
  EXPECT_EQ(judge({0, 1, 3}), V::near_tie);
  EXPECT_EQ(judge({0, 1, 5}), V::mismatch);
  EXPECT_EQ(judge({0, 1, 11}), V::mismatch) << "NaN";
  EXPECT_EQ(judge({0, 1, 12}), V::mismatch) << "invisible";
  EXPECT_EQ(judge({0, 1, 1}), V::mismatch) << "repeated";
  EXPECT_EQ(judge({0, 1}), V::mismatch) << "too few";
  EXPECT_EQ(judge({}), V::mismatch);
}

TEST(RelativeError, IsTheRatioOfNorms) {
  reference::RelativeError e;
  e.add(3.0, 3.0);
  e.add(4.1, 4.0);
  EXPECT_NEAR(e.value(), 0.1 / 5, 1e-12);
}

TEST(RelativeError, IsAbsoluteWhereTheReferenceVanishes) {
  reference::RelativeError e;
  e.add(3e-9, 0.0);
  e.add(4e-9, 1e-17);
  EXPECT_NEAR(e.value(), 5e-9, 1e-15);
}

TEST(RelativeError, EqualInfinitiesAgreeOthersDoNot) {
  reference::RelativeError equal;
  equal.add(-INFINITY, -INFINITY);
  equal.add(1.0, 1.0);
  EXPECT_EQ(equal.value(), 0.0);
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    reference::RelativeError e;
    e.add(bad, 1.0);
    EXPECT_EQ(e.value(), INFINITY);
    reference::RelativeError other;
    other.add(1.0, bad);
    EXPECT_EQ(other.value(), INFINITY);
  }
  reference::RelativeError opposite;
  opposite.add(INFINITY, -INFINITY);
  EXPECT_EQ(opposite.value(), INFINITY);
}

}  // namespace
}  // namespace tandem::testing

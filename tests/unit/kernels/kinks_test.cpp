// SPDX-License-Identifier: Apache-2.0
// Relu's kinks in the oracle: which it lists, and that settling them repairs these and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernel_case.hpp"

namespace tandem::testing {
namespace {

constexpr std::int64_t row = 4;
constexpr std::int64_t head = 1;
constexpr std::int64_t keys[] = {2, 5};
constexpr reference::Portion portion{2, 6};  // rows are numbered in it

/// Two arguments of relu in one row and head that a test puts where it wants them.
class Kinks : public ::testing::Test {
 protected:
  Kinks() : rng_(test_rng(90)), case_(make_case(rng_, shape(), DType::f32)) {
    reference::Problem& p = case_.p;
    p.begin.assign(7, 0);
    p.end.assign(7, 9);
    // Scores that hardly differ, and no target at these keys: the gradients of their scores are their probabilities,
    // about 1/9, and larger than all others.
    std::fill(p.index_w.begin(), p.index_w.end(), 0.02F);
    sums_.assign(7, std::vector<double>(9, 1.0));
    for (const std::int64_t key : keys) sums_[row][static_cast<std::size_t>(key)] = 0;
  }

  /// Moves key number `i` along q until q . k is x, up to about 1e-6.
  void place(int i, double x) {
    const float* q = &case_.p.index_q[(row * 2 + head) * 128];
    float* k = &case_.p.index_k[static_cast<std::size_t>(keys[i]) * 128];
    for (int rounds = 0; rounds < 2; ++rounds) {
      double dot = 0, size = 0;
      for (int c = 0; c < 128; ++c) {
        dot += static_cast<double>(q[c]) * static_cast<double>(k[c]);
        size += static_cast<double>(q[c]) * static_cast<double>(q[c]);
      }
      for (int c = 0; c < 128; ++c) k[c] += static_cast<float>((x - dot) / size * static_cast<double>(q[c]));
    }
  }
  /// With the arguments `x` from 0: bit i of `open` set if the i-th is above it.
  reference::IndexerLoss at(int open, double x) {
    for (const int i : {0, 1}) place(i, (open >> i & 1) != 0 ? x : -x);
    return reference::indexer_loss(case_.p, nullptr, portion, 0, &sums_);
  }
  static double error(const std::vector<double>& got, const std::vector<double>& want) {
    reference::RelativeError e;
    e.add(std::span<const double>(got), std::span<const double>(want));
    return e.value();
  }
  std::int64_t settle(reference::IndexerLoss& loss, const std::vector<double>& got) const {
    return reference::settle_kinks(case_.p, portion, loss, got);
  }

  static CaseShape shape() { return {.rows = 7, .keys = 9, .heads = 1, .index_heads = 2, .dim = 16, .topk = 4}; }

  static constexpr double inside = 2e-5;  // the bound is about 130 * 2^-24 * 80 = 6e-4
  static constexpr double outside = 2e-3;

  std::mt19937_64 rng_;
  Case case_;
  std::vector<std::vector<double>> sums_;
};

TEST_F(Kinks, AreTheArgumentsWithinTheBound) {
  const reference::IndexerLoss l = at(1, inside);
  std::vector<std::int64_t> found;
  for (const reference::Kink& k : l.kinks) {
    if (k.row == row - portion.begin && k.head == head) found.push_back(k.key);
  }
  EXPECT_EQ(found, std::vector<std::int64_t>(std::begin(keys), std::end(keys)));
  for (const reference::Kink& k : at(1, outside).kinks) {
    EXPECT_FALSE(k.row == row - portion.begin && k.head == head && (k.key == keys[0] || k.key == keys[1]));
  }
  case_.p.relu = false;
  EXPECT_TRUE(at(1, inside).kinks.empty());
}

TEST_F(Kinks, SettlingTakesTheOtherSideInBothGradients) {
  for (int ours = 0; ours < 4; ++ours) {
    for (int theirs = 0; theirs < 4; ++theirs) {
      SCOPED_TRACE(::testing::Message() << ours << " against " << theirs);
      // What code that sees the other side computes: the gradients there, a step of 1e-7 away.
      const reference::IndexerLoss got = at(theirs, inside);
      const reference::IndexerLoss before = at(ours, inside);
      reference::IndexerLoss want = before;
      if (ours != theirs) {
        EXPECT_GT(error(got.d_index_q, want.d_index_q), 1e-3);
        EXPECT_GT(error(got.d_index_k, want.d_index_k), 1e-3);
      }
      const int differ = ours ^ theirs;
      EXPECT_EQ(settle(want, got.d_index_q), (differ & 1) + (differ >> 1));
      EXPECT_LE(error(got.d_index_q, want.d_index_q), 2e-5);
      EXPECT_LE(error(got.d_index_k, want.d_index_k), 2e-5);
      EXPECT_LE(error(got.d_index_w, want.d_index_w), 2e-5);
      EXPECT_EQ(settle(want, got.d_index_q), 0) << "it is settled";
      EXPECT_EQ(settle(want, before.d_index_q), (differ & 1) + (differ >> 1)) << "and back";
      EXPECT_LE(error(before.d_index_k, want.d_index_k), 1e-12);
    }
  }
}

TEST_F(Kinks, TheWrongSideOfAnArgumentOutsideTheBoundIsNotExcused) {
  const reference::IndexerLoss got = at(3, outside);
  reference::IndexerLoss want = at(1, outside);
  EXPECT_EQ(settle(want, got.d_index_q), 0);
  EXPECT_GT(error(got.d_index_q, want.d_index_q), 1e-3);
  EXPECT_GT(error(got.d_index_k, want.d_index_k), 1e-3);
}

TEST_F(Kinks, AnErrorThatIsNoKinkIsNotExcused) {
  const reference::IndexerLoss right = at(2, inside);
  const std::int64_t vector = ((row - portion.begin) * 2 + head) * 128;
  const auto spoilt = [&](std::int64_t where, double factor) {
    std::vector<double> got = right.d_index_q;
    const float* k = &case_.p.index_k[static_cast<std::size_t>(keys[0]) * 128];
    for (const reference::Kink& kink : right.kinks) {
      if (kink.row != row - portion.begin || kink.head != head || kink.key != keys[0]) continue;
      for (int c = 0; c < 128; ++c)
        got[static_cast<std::size_t>(where + c)] += factor * kink.jump * static_cast<double>(k[c]);
    }
    return got;
  };
  const auto error_left = [&](const std::vector<double>& got) {
    reference::IndexerLoss want = right;
    settle(want, got);
    return error(got, want.d_index_q);
  };
  EXPECT_LE(error_left(spoilt(vector, 1)), 1e-12);
  EXPECT_GT(error_left(spoilt(vector, 0.4)), 1e-3) << "part of a jump";
  EXPECT_GT(error_left(spoilt(vector, 2)), 1e-3) << "more than a jump";
  EXPECT_GT(error_left(spoilt(vector, -1)), 1e-3) << "the wrong way";
  EXPECT_GT(error_left(spoilt(vector - 128, 1)), 1e-3) << "another head";
  EXPECT_GT(error_left(spoilt(vector + 256, 1)), 1e-3) << "another row";
  std::vector<double> nan = right.d_index_q;
  nan[static_cast<std::size_t>(vector)] = NAN;
  EXPECT_EQ(error_left(nan), INFINITY);
}

}  // namespace
}  // namespace tandem::testing

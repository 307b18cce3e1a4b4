// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "kernel_case.hpp"
#include "kernels/cpu/topk_select.hpp"

namespace tandem::testing {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

IndexerStep whole_step(const Case& c) { return {{{0, c.p.rows}}, {{0, c.p.keys}}, {}, true, true}; }

TopkLists run_whole(const Case& c, int threads = 2) {
  Runner runner(threads);
  const TopkLists lists = poisoned_lists(c.p.rows, c.p.topk);
  detail::cpu::indexer_topk(runner.context, whole_step(c), c.indexer(), {}, lists);
  return lists;
}

void expect_same(const TopkLists& a, const TopkLists& b) {
  EXPECT_EQ(bytes_of(a.indices), bytes_of(b.indices));
  EXPECT_EQ(bytes_of(a.length), bytes_of(b.length));
  EXPECT_EQ(*a.nan_count.data_as<std::int64_t>(), *b.nan_count.data_as<std::int64_t>());
}

/// One query head that reads column 0 of the keys: their scores are `score`, exactly. Every row sees all keys.
Case case_with_scores(std::int64_t rows, std::int64_t topk, const std::vector<float>& score) {
  auto rng = test_rng(10);
  Case c =
      make_case(rng, {.rows = rows, .keys = std::ssize(score), .heads = 1, .index_heads = 1, .dim = 16, .topk = topk},
                DType::f32);
  reference::Problem& p = c.p;
  p.relu = false;
  std::fill(p.begin.begin(), p.begin.end(), 0);
  std::fill(p.end.begin(), p.end.end(), p.keys);
  std::fill(p.index_q.begin(), p.index_q.end(), 0.0F);
  std::fill(p.index_k.begin(), p.index_k.end(), 0.0F);
  for (std::int64_t t = 0; t < rows; ++t) {
    p.index_q[static_cast<std::size_t>(t * 128)] = 1;
    p.index_w[static_cast<std::size_t>(t)] = 1;
  }
  for (std::size_t i = 0; i < score.size(); ++i) p.index_k[i * 128] = score[i];
  c.refresh();
  return c;
}

void expect_reference(const Case& c, const TopkLists& lists) {
  std::int64_t nans = 0;
  for (std::int64_t t = 0; t < c.p.rows; ++t) {
    const reference::Topk wanted = reference::topk(c.p, t);
    EXPECT_EQ(list_of(lists, t), wanted.keys) << "row " << t;
    const std::int32_t* list = lists.indices.data_as<std::int32_t>() + t * c.p.topk;
    for (std::int64_t i = std::ssize(wanted.keys); i < c.p.topk; ++i) EXPECT_EQ(list[i], -1);
    nans += wanted.nans;
  }
  EXPECT_EQ(*lists.nan_count.data_as<std::int64_t>(), nans);
}

TEST(IndexerTopk, ExactScoresOfEveryShapeGiveTheReferenceSet) {
  const std::int64_t n = 1000;
  auto rng = test_rng(11);
  const std::vector<std::pair<const char*, std::function<float(std::int64_t)>>> shapes = {
      {"ascending", [](std::int64_t i) { return static_cast<float>(i); }},
      {"descending", [](std::int64_t i) { return static_cast<float>(-i); }},
      {"all equal", [](std::int64_t) { return 3.0F; }},
      {"few values", [&](std::int64_t) { return static_cast<float>(rng() % 4); }},
      {"low bits differ", [&](std::int64_t) { return 1.0F + static_cast<float>(rng() % 1024) * 0x1p-23F; }},
      {"plateau of zeros of both signs",
       [&](std::int64_t i) { return i % 97 == 5 ? 1.0F : (rng() % 2 == 0 ? 0.0F : -0.0F); }},
      {"permutation", [](std::int64_t i) { return static_cast<float>(i * 387 % 1000); }},
  };
  for (const auto& [name, score] : shapes) {
    for (const std::int64_t topk : {1, 7, 64, 500, 999}) {
      SCOPED_TRACE(::testing::Message() << name << ", K " << topk);
      std::vector<float> scores(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) scores[static_cast<std::size_t>(i)] = score(i);
      const Case c = case_with_scores(3, topk, scores);
      expect_reference(c, run_whole(c));
    }
  }
}

TEST(IndexerTopk, NanIsNeverTakenButCountedAndInfinitiesAreOrdinary) {
  std::vector<float> score(300, -inf);
  // q . k touches 127 other columns with 0 * 0, so infinities stay what they are.
  for (std::size_t i = 0; i < score.size(); i += 3) score[i] = NAN;
  score[100] = inf;
  score[200] = 5;
  for (const std::int64_t topk : {1, 2, 3, 50, 199, 200, 201, 299}) {
    const Case c = case_with_scores(2, topk, score);
    SCOPED_TRACE(topk);
    expect_reference(c, run_whole(c));
  }
  const Case all_nan = case_with_scores(2, 10, std::vector<float>(40, NAN));
  const TopkLists lists = run_whole(all_nan);
  EXPECT_EQ(list_of(lists, 0), std::vector<std::int64_t>{});
  EXPECT_EQ(*lists.nan_count.data_as<std::int64_t>(), 80);
}

TEST(IndexerTopk, ReluKeepsNan) {
  Case c = case_with_scores(1, 2, {1, NAN, -3, 2});
  c.p.relu = true;
  const TopkLists lists = run_whole(c);
  EXPECT_EQ(list_of(lists, 0), (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(*lists.nan_count.data_as<std::int64_t>(), 1);
}

TEST(IndexerTopk, RowsThatSeeAtMostKTakeAllWithoutScoring) {
  Case c = case_with_scores(4, 5, std::vector<float>(9, NAN));
  c.p.begin = {0, 2, 3, 4};
  c.p.end = {5, 6, 3, 10 - 1};
  c.p.end[0] = 6;  // 6 keys: K + 1, scored
  const TopkLists lists = run_whole(c);
  EXPECT_EQ(list_of(lists, 0), std::vector<std::int64_t>{});
  EXPECT_EQ(list_of(lists, 1), (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(list_of(lists, 2), std::vector<std::int64_t>{});
  EXPECT_EQ(list_of(lists, 3), (std::vector<std::int64_t>{4, 5, 6, 7, 8}));
  EXPECT_EQ(*lists.nan_count.data_as<std::int64_t>(), 6);
}

class RandomTopk : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, RandomTopk, ::testing::Values(DType::f32, DType::bf16, DType::f8e4m3),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(RandomTopk, MatchesTheReferenceButForNearTies) {
  for (const std::int64_t heads : {1, 2, 3, 5, 8, 13}) {
    auto rng = test_rng(20 + static_cast<std::uint64_t>(heads));
    const Case c = make_case(
        rng, {.rows = 150, .keys = 400, .heads = 1, .index_heads = heads, .dim = 16, .topk = 24, .relu = heads != 3},
        GetParam());
    const TopkLists lists = run_whole(c);
    int near_ties = 0;
    for (std::int64_t t = 0; t < c.p.rows; ++t) {
      const auto verdict = reference::compare_topk(c.p, t, list_of(lists, t));
      EXPECT_NE(verdict, reference::SetVerdict::mismatch) << "row " << t << ", Hi " << heads;
      near_ties += verdict == reference::SetVerdict::near_tie;
    }
    EXPECT_LE(near_ties, 3);
  }
}

TEST_P(RandomTopk, StepsOfAnyKeyRangesGiveTheSameBits) {
  auto rng = test_rng(30);
  const Case c =
      make_case(rng, {.rows = 90, .keys = 333, .heads = 1, .index_heads = 3, .dim = 16, .topk = 20}, GetParam());
  const TopkLists wanted = run_whole(c);
  for (int trial = 0; trial < 8; ++trial) {
    // Random cuts of the keys, dealt to a few steps in random order; the rows in two ranges.
    std::set<std::int64_t> cuts{0, c.p.keys};
    for (int i = 0; i < 12; ++i) cuts.insert(static_cast<std::int64_t>(rng() % 333));
    const std::size_t steps = 1 + rng() % 4;
    std::vector<std::vector<RowRange>> keys(steps);
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
      keys[rng() % steps].push_back({*cut, *std::next(cut)});
    }
    const TopkLists lists = poisoned_lists(c.p.rows, c.p.topk);
    const TopkState state = poisoned_state(c.p.rows, c.p.topk);
    Runner runner(2);
    for (std::size_t i = 0; i < steps; ++i) {
      const IndexerStep step{{{0, 17}, {17, 90}}, keys[i], {}, i == 0, i + 1 == steps};
      detail::cpu::indexer_topk(runner.context, step, c.indexer(), state, lists);
    }
    expect_same(lists, wanted);
  }
}

TEST_P(RandomTopk, ThreadsTilesAndRowOrderChangeNoBit) {
  auto rng = test_rng(31);
  const Case c =
      make_case(rng, {.rows = 200, .keys = 300, .heads = 1, .index_heads = 2, .dim = 16, .topk = 20}, GetParam());
  const TopkLists wanted = run_whole(c, 1);
  for (const int threads : {2, 3, 7}) expect_same(run_whole(c, threads), wanted);
  // One row a call: no row shares its tile with another.
  Runner runner(1);
  const TopkLists lists = poisoned_lists(c.p.rows, c.p.topk);
  for (std::int64_t t = 0; t < c.p.rows; ++t) {
    const IndexerStep step{{{t, t + 1}}, {{0, c.p.keys}}, {}, true, true};
    detail::cpu::indexer_topk(runner.context, step, c.indexer(), {}, lists);
  }
  expect_same(lists, wanted);
}

TEST_P(RandomTopk, AScoreIsAFunctionOfItsTwoRowsAlone) {
  // The same key at every place of a tile ties with itself: the lowest landed rows must win for every query, at every
  // place of a query tile.
  for (const std::int64_t heads : {1, 2, 5, 7}) {
    auto rng = test_rng(32);
    Case c =
        make_case(rng, {.rows = 70, .keys = 203, .heads = 1, .index_heads = heads, .dim = 16, .topk = 9}, GetParam());
    for (std::int64_t key = 1; key < c.p.keys; ++key) {
      std::copy_n(c.p.index_k.begin(), 128, c.p.index_k.begin() + key * 128);
    }
    for (float& scale : c.p.index_k_scale) scale = c.p.index_k_scale[0];
    c.refresh();
    const TopkLists lists = run_whole(c);
    for (std::int64_t t = 0; t < c.p.rows; ++t) {
      std::vector<std::int64_t> lowest;
      for (std::int64_t key = c.p.begin[static_cast<std::size_t>(t)];
           key < c.p.end[static_cast<std::size_t>(t)] && std::ssize(lowest) < c.p.topk; ++key) {
        lowest.push_back(key);
      }
      EXPECT_EQ(list_of(lists, t), lowest) << "row " << t;
    }
  }
}

TEST_P(RandomTopk, RowsMayLieApart) {
  auto rng = test_rng(33);
  const Case c =
      make_case(rng, {.rows = 40, .keys = 90, .heads = 1, .index_heads = 3, .dim = 16, .topk = 10}, GetParam());
  const auto spread = [](const Tensor& t, std::int64_t gap) {
    // A copy whose rows are `gap` elements further apart, poison between them.
    const std::int64_t stride = t.row_elements() + gap;
    const Buffer memory = poisoned_buffer(static_cast<std::size_t>(t.size(0) * stride) * size_of(t.dtype()));
    for (std::int64_t i = 0; i < t.size(0); ++i) {
      std::memcpy(static_cast<char*>(memory.data()) + static_cast<std::size_t>(i * stride) * size_of(t.dtype()),
                  t.rows(i, 1).data(), t.row_bytes());
    }
    const Tensor view = t.dims() == 3 ? Tensor::from_raw(memory.data(), t.dtype(), {t.size(0), t.size(1), t.size(2)},
                                                         {stride, t.size(2), 1})
                                      : Tensor::from_raw(memory.data(), t.dtype(), {t.size(0), t.size(1)}, {stride, 1});
    return std::pair(memory, view);
  };
  const auto [q_memory, q] = spread(c.index_q, 24);
  const auto [k_memory, k] = spread(c.index_k, 8);
  const auto [w_memory, w] = spread(c.index_w, 5);
  Case apart = c;
  apart.index_q = q;
  apart.index_k = k;
  apart.index_w = w;
  expect_same(run_whole(apart), run_whole(c));
}

/// The problem with other keys, of another type.
Case with_keys(const Case& c, DType index_dtype, const std::vector<float>& index_k, const std::vector<float>& scale) {
  Case other = c;
  other.index_dtype = index_dtype;
  other.p.index_k = index_k;
  other.p.index_k_scale = scale;
  other.refresh();
  return other;
}

TEST(IndexerTopk, ExactE4m3InputsGiveTheListsOfBf16) {
  for (const std::int64_t heads : {1, 3, 8}) {
    auto rng = test_rng(35);
    Case c = make_case(
        rng, {.rows = 120, .keys = 500, .heads = 1, .index_heads = heads, .dim = 16, .topk = 33, .relu = heads != 3},
        DType::bf16);
    // Small integers and quarters: every order of summing gives the same score, and many scores are equal.
    const auto draw = [&] { return static_cast<float>(static_cast<int>(rng() % 5) - 2); };
    for (float& x : c.p.index_q) x = draw();
    for (float& x : c.p.index_k) x = draw();
    for (float& x : c.p.index_w) x = draw() / 4;
    c.refresh();
    const std::vector<float> ones(static_cast<std::size_t>(c.p.keys), 1.0F);
    expect_same(run_whole(with_keys(c, DType::f8e4m3, c.p.index_k, ones)), run_whole(c));
    // Powers of two as scales are keys that are greater by as much.
    std::vector<float> scale;
    std::vector<float> index_k = c.p.index_k;
    for (std::size_t key = 0; key < ones.size(); ++key) {
      scale.push_back(std::ldexp(1.0F, static_cast<int>(rng() % 7) - 3));
      for (std::size_t i = 128 * key; i < 128 * (key + 1); ++i) index_k[i] *= scale.back();
    }
    expect_same(run_whole(with_keys(c, DType::f8e4m3, c.p.index_k, scale)),
                run_whole(with_keys(c, DType::bf16, index_k, {})));
  }
}

TEST(IndexerTopk, ScalesOfKeysMultiplyTheirScores) {
  // Codes all score 1, so that scores are the scales.
  const std::vector<float> scale{3, NAN, -inf, 0, -0.0F, 5, inf, -2, 0x1p-140F, 3};
  for (const std::int64_t topk : {1, 2, 4, 5, 7, 8, 9}) {
    const Case c = case_with_scores(2, topk, std::vector<float>(scale.size(), 1.0F));
    const Case wanted = case_with_scores(2, topk, scale);
    SCOPED_TRACE(topk);
    const Case scaled = with_keys(c, DType::f8e4m3, c.p.index_k, scale);
    expect_same(run_whole(scaled), run_whole(wanted));
    expect_reference(scaled, run_whole(scaled));
    // As a gather lands them.
    Case column = scaled;
    column.index_k_scale = from_floats(DType::f32, {scaled.p.keys, 1}, scale);
    expect_same(run_whole(column), run_whole(wanted));
  }
}

TEST(IndexerTopk, E4m3NanIsNeverTaken) {
  auto rng = test_rng(36);
  Case c = make_case(rng, {.rows = 5, .keys = 90, .heads = 1, .index_heads = 2, .dim = 16, .topk = 6}, DType::f8e4m3);
  for (std::size_t key = 0; key < 90; key += 4) c.p.index_k[128 * key + key] = NAN;
  c.refresh();
  const TopkLists lists = run_whole(c);
  EXPECT_GT(*lists.nan_count.data_as<std::int64_t>(), 0);
  expect_reference(c, lists);
}

TEST(IndexerTopk, RankKeysFollowTheTotalOrder) {
  using detail::cpu::rank_key;
  EXPECT_EQ(rank_key(-0.0F, 5), rank_key(0.0F, 5));
  const float ascending[] = {-inf, -2, -0x1p-149F, 0, 0x1p-149F, 1, inf};
  EXPECT_GT(rank_key(-inf, 0x7FFFFFFF), 0U) << "0 stands for nothing";
  for (std::size_t i = 0; i < std::size(ascending); ++i) {
    EXPECT_EQ(detail::cpu::rank_key_score(rank_key(ascending[i], 7)), ascending[i]);
    EXPECT_EQ(detail::cpu::rank_key_row(rank_key(ascending[i], 7)), 7);
    EXPECT_GT(rank_key(ascending[i], 3), rank_key(ascending[i], 4)) << "the lower row comes first";
    if (i > 0) {
      EXPECT_GT(rank_key(ascending[i], 4), rank_key(ascending[i - 1], 3));
    }
  }
}

TEST(IndexerTopk, NoRowsNoKeys) {
  auto rng = test_rng(34);
  const Case empty = make_case(rng, {.rows = 0, .keys = 0, .heads = 1, .dim = 16}, DType::f32);
  run_whole(empty);
  Case blind = make_case(rng, {.rows = 3, .keys = 3, .heads = 1, .dim = 16}, DType::f32);
  blind.p.end = blind.p.begin;
  const TopkLists lists = run_whole(blind);
  EXPECT_EQ(bytes_of(lists.indices), std::vector<std::uint8_t>(3 * 16 * 4, 0xFF));
  EXPECT_EQ(values_of(lists.length), (std::vector<double>{0, 0, 0}));
}

}  // namespace
}  // namespace tandem::testing

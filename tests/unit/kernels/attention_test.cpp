// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "kernel_case.hpp"

namespace tandem::testing {
namespace {

struct Results {
  Tensor out, lse, head_sums, dq, dkv, dsink;
};

Results allocate_results(const Case& c, std::int64_t topk) {
  const auto& p = c.p;
  return {poisoned(c.dtype, {p.rows, p.heads, value_dim}),
          poisoned(DType::f32, {p.rows, p.heads}),
          poisoned(DType::f32, {p.rows, topk}),
          poisoned(c.dtype, {p.rows, p.heads, p.dim}),
          zeros(DType::f32, {p.keys, p.dim}),
          p.sink.empty() ? Tensor() : zeros(DType::f32, {p.heads})};
}

Results run(const Case& c, const TopkLists& lists, int threads = 2) {
  Runner runner(threads);
  const Results r = allocate_results(c, lists.indices.size(1));
  const AttentionInputs in = c.attention(lists.indices, lists.length);
  detail::cpu::sparse_mla_forward(runner.context, in, {r.out, r.lse, r.head_sums});
  detail::cpu::sparse_mla_backward(runner.context, {0, c.p.rows}, in, {c.dout, r.out, r.lse, r.dq, r.dkv, r.dsink});
  return r;
}

reference::Lists random_lists(std::mt19937_64& rng, const Case& c) {
  reference::Lists lists(static_cast<std::size_t>(c.p.rows));
  for (std::size_t t = 0; t < lists.size(); ++t) {
    std::vector<std::int64_t> keys(static_cast<std::size_t>(c.p.end[t] - c.p.begin[t]));
    std::iota(keys.begin(), keys.end(), c.p.begin[t]);
    std::shuffle(keys.begin(), keys.end(), rng);
    keys.resize(std::min(keys.size(), static_cast<std::size_t>(c.p.topk)));
    std::sort(keys.begin(), keys.end());
    lists[t] = keys;
  }
  return lists;
}

void expect_same_bits(const Results& a, const Results& b) {
  EXPECT_EQ(bytes_of(a.out), bytes_of(b.out));
  EXPECT_EQ(bytes_of(a.lse), bytes_of(b.lse));
  EXPECT_EQ(bytes_of(a.dq), bytes_of(b.dq));
  EXPECT_EQ(bytes_of(a.dkv), bytes_of(b.dkv));
  if (a.dsink.valid()) {
    EXPECT_EQ(bytes_of(a.dsink), bytes_of(b.dsink));
  }
}

/// dsink sums delta = out . dout over rows: numbers of either sign that may cancel. The rounding of out, u of each of
/// 512 products, is therefore judged by the size of the terms: eight deviations of their sum.
void expect_dsink(const Case& c, const Tensor& got, const std::vector<double>& want) {
  const double u = c.dtype == DType::bf16 ? 0x1p-9 : 0x1p-24;
  const double deviation = u * std::sqrt(512.0 * static_cast<double>(c.p.rows));
  for (std::size_t h = 0; h < want.size(); ++h) {
    EXPECT_NEAR(values_of(got)[h], want[h], 8 * deviation + 1e-5 * std::fabs(want[h]));
  }
}

class Attention : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, Attention, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(Attention, MatchesTheReference) {
  // fp32 is held to the promise of the whole stack; bf16 results are rounded to 8 bits, and delta is taken from such.
  const bool bf16 = GetParam() == DType::bf16;
  const double rounded = bf16 ? 4e-3 : 2e-5;
  for (const auto& [heads, dim, topk, sink] :
       {std::tuple{3, 576, 16, false}, {4, 512, 70, true}, {1, 576, 1, true}, {7, 576, 130, false}}) {
    auto rng = test_rng(40 + static_cast<std::uint64_t>(heads));
    const Case c =
        make_case(rng, {.rows = 45, .keys = 160, .heads = heads, .dim = dim, .topk = topk, .sink = sink}, GetParam());
    const reference::Lists lists = random_lists(rng, c);
    const Results r = run(c, lists_tensor(lists, topk));
    const auto want = reference::attention(c.p, lists);
    SCOPED_TRACE(::testing::Message() << "heads " << heads << ", dim " << dim << ", K " << topk);
    EXPECT_LE(relative_error(r.out, want.out), rounded);
    EXPECT_LE(relative_error(r.lse, want.lse), 2e-6);
    EXPECT_LE(relative_error(r.dq, want.dq), bf16 ? 2e-2 : 2e-5);
    EXPECT_LE(relative_error(r.dkv, want.dkv), bf16 ? 1e-2 : 2e-5);
    if (sink) {
      expect_dsink(c, r.dsink, want.dsink);
    }
    std::vector<double> sums(static_cast<std::size_t>(c.p.rows * topk));
    for (std::int64_t t = 0; t < c.p.rows; ++t) {
      const auto row = reference::head_sums(c.p, t, lists[static_cast<std::size_t>(t)]);
      std::copy(row.begin(), row.end(), sums.begin() + t * topk);
    }
    EXPECT_LE(relative_error(r.head_sums, sums), 2e-5);
  }
}

TEST_P(Attention, ThreadsAndRowsPerCallChangeNoBit) {
  auto rng = test_rng(50);
  // More rows than a block of the backward has.
  const Case c = make_case(rng, {.rows = 300, .keys = 320, .heads = 2, .topk = 8, .sink = true}, GetParam());
  const reference::Lists selected = random_lists(rng, c);
  const TopkLists lists = lists_tensor(selected, 8);
  const Results wanted = run(c, lists, 1);
  // Rows of the second block, dead ones among them, reuse the memory of the first.
  const auto right = reference::attention(c.p, selected);
  EXPECT_LE(relative_error(wanted.dkv, right.dkv), c.dtype == DType::bf16 ? 1e-2 : 2e-5);
  expect_dsink(c, wanted.dsink, right.dsink);
  for (const int threads : {2, 3, 7}) expect_same_bits(run(c, lists, threads), wanted);
  expect_same_bits(run(c, lists, 2), wanted);
}

TEST_P(Attention, OrderDuplicatesAndHolesOfAListChangeNoBit) {
  auto rng = test_rng(51);
  const Case c = make_case(rng, {.rows = 50, .keys = 90, .heads = 3, .topk = 12, .sink = true}, GetParam());
  const reference::Lists lists = random_lists(rng, c);
  reference::Lists messy = lists;
  for (auto& list : messy) {
    for (int i = 0; i < 5 && !list.empty(); ++i) list.push_back(list[rng() % list.size()]);
    for (int i = 0; i < 3; ++i) list.push_back(-1);
    std::shuffle(list.begin(), list.end(), rng);
  }
  const Results plain = run(c, lists_tensor(lists, 12));
  const Results r = run(c, lists_tensor(messy, 20));
  expect_same_bits(r, plain);
  // Head sums follow the caller's entries: the first of equal ones has the value, the others and holes have 0.
  for (std::int64_t t = 0; t < c.p.rows; ++t) {
    const auto& list = messy[static_cast<std::size_t>(t)];
    const auto& sorted = lists[static_cast<std::size_t>(t)];
    for (std::int64_t i = 0; i < 20; ++i) {
      double want = 0;
      const auto entry = list.begin() + std::min(i, std::ssize(list));
      if (i < std::ssize(list) && *entry >= 0 && std::find(list.begin(), entry, *entry) == entry) {
        const auto place = std::find(sorted.begin(), sorted.end(), *entry) - sorted.begin();
        want = static_cast<double>(plain.head_sums.data_as<float>()[t * 12 + place]);
      }
      EXPECT_EQ(static_cast<double>(r.head_sums.data_as<float>()[t * 20 + i]), want) << "row " << t << ", entry " << i;
    }
  }
}

TEST_P(Attention, DeadRowsBesideFullOnes) {
  auto rng = test_rng(52);
  for (const bool sink : {false, true}) {
    Case c = make_case(rng, {.rows = 6, .keys = 40, .heads = 2, .topk = 9, .sink = sink}, GetParam());
    const std::vector<std::int64_t> full = {1, 3, 5, 7, 11, 13, 17, 19, 23};
    const reference::Lists lists = {{}, full, {}, {}, full, {}};
    // Whatever a dead row's dout is, it must not matter.
    for (std::int64_t i = 0; i < 2 * value_dim; ++i) c.p.dout[static_cast<std::size_t>(i)] = NAN;
    c.refresh();
    const Results r = run(c, lists_tensor(lists, 9));
    for (const std::int64_t t : {0, 2, 3, 5}) {
      for (const double x : values_of(r.out.rows(t, 1))) ASSERT_EQ(x, 0);
      for (const double x : values_of(r.dq.rows(t, 1))) ASSERT_EQ(x, 0);
      for (const double x : values_of(r.head_sums.rows(t, 1))) ASSERT_EQ(x, 0);
      for (std::int64_t h = 0; h < 2; ++h) {
        const float lse = r.lse.data_as<float>()[t * 2 + h];
        EXPECT_EQ(lse, sink ? c.p.sink[static_cast<std::size_t>(h)] : -std::numeric_limits<float>::infinity());
      }
    }
    for (const Tensor& t : {r.dkv, r.dsink}) {
      if (!t.valid()) continue;
      for (const double x : values_of(t)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_P(Attention, AListOfHolesAloneIsDead) {
  auto rng = test_rng(53);
  const Case c = make_case(rng, {.rows = 2, .keys = 40, .heads = 2, .topk = 3}, GetParam());
  const Results r = run(c, lists_tensor({{-1, -1}, {-1, 4, -1}}, 3));
  EXPECT_EQ(r.lse.data_as<float>()[0], -std::numeric_limits<float>::infinity());
  for (const double x : values_of(r.dq.rows(0, 1))) ASSERT_EQ(x, 0);
}

TEST_P(Attention, OneKeyGivesItsValueAndItsGradientExactly) {
  auto rng = test_rng(54);
  const Case c = make_case(rng, {.rows = 9, .keys = 30, .heads = 3, .topk = 4}, GetParam());
  reference::Lists lists;
  for (std::int64_t t = 0; t < 9; ++t) lists.push_back({3 * t + 1});
  const Results r = run(c, lists_tensor(lists, 4));
  for (std::int64_t t = 0; t < 9; ++t) {
    const auto key = static_cast<std::size_t>((3 * t + 1) * c.p.dim);
    const std::vector<double> out = values_of(r.out.rows(t, 1));
    const std::vector<double> dkv = values_of(r.dkv.rows(3 * t + 1, 1));
    for (std::size_t x = 0; x < 512; ++x) {
      double dout = 0;
      for (std::size_t h = 0; h < 3; ++h) {
        ASSERT_EQ(out[h * 512 + x], static_cast<double>(c.p.kv[key + x]));
        dout += static_cast<double>(c.p.dout[(static_cast<std::size_t>(t) * 3 + h) * 512 + x]);
      }
      ASSERT_NEAR(dkv[x], dout, 1e-4 * (1 + std::fabs(dout)));
    }
  }
}

TEST(AttentionExact, OneHeadOneKeyGivesDoutBitwise) {
  auto rng = test_rng(55);
  Case c = make_case(rng, {.rows = 4, .keys = 8, .heads = 1, .topk = 2}, DType::f32);
  // out equals the key's value, so dP - delta is exactly 0 when both are summed alike: integers make it so.
  for (float& x : c.p.kv) x = std::round(2 * x);
  for (float& x : c.p.dout) x = std::round(2 * x);
  c.refresh();
  const Results r = run(c, lists_tensor({{7}, {5}, {3}, {1}}, 2));
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t x = 0; x < 512; ++x) {
      ASSERT_EQ(r.dkv.data_as<float>()[(7 - 2 * t) * 576 + x], c.p.dout[static_cast<std::size_t>(t * 512 + x)]);
    }
  }
  for (const double x : values_of(r.dq)) ASSERT_EQ(x, 0);
}

TEST(AttentionExact, FlatAttentionSpreadsDoutLikeAHistogram) {
  auto rng = test_rng(56);
  Case c = make_case(rng, {.rows = 40, .keys = 60, .heads = 3, .topk = 8}, DType::f32);
  std::fill(c.p.q.begin(), c.p.q.end(), 0.0F);
  std::fill(c.p.dout.begin(), c.p.dout.end(), 1.0F);
  c.refresh();
  const reference::Lists lists = random_lists(rng, c);
  const Results r = run(c, lists_tensor(lists, 8));
  std::vector<double> want(60);
  for (const auto& list : lists) {
    for (const std::int64_t key : list) want[static_cast<std::size_t>(key)] += 3.0 / static_cast<double>(list.size());
  }
  for (std::int64_t key = 0; key < 60; ++key) {
    for (std::int64_t x = 0; x < 512; ++x) {
      const double got = static_cast<double>(r.dkv.data_as<float>()[key * 576 + x]);
      ASSERT_NEAR(got, want[static_cast<std::size_t>(key)], 1e-5);
    }
  }
}

TEST(AttentionExact, LargeLogitsAndSaturatingSinks) {
  auto rng = test_rng(57);
  Case c = make_case(rng, {.rows = 12, .keys = 40, .heads = 2, .topk = 9, .sink = true}, DType::f32);
  for (float& x : c.p.q) x *= 20;  // logits of some 30, at most about 100
  c.p.sink = {1000.0F, -1000.0F};
  c.refresh();
  const reference::Lists lists = random_lists(rng, c);
  const Results r = run(c, lists_tensor(lists, 9));
  const auto want = reference::attention(c.p, lists);
  EXPECT_LE(relative_error(r.out, want.out), 1e-4);
  EXPECT_LE(relative_error(r.lse, want.lse), 2e-6);
  // Where one probability is nearly 1, dP - delta cancels: dq is judged by the size of its terms, not by its own.
  const std::vector<double> dq = values_of(r.dq);
  for (std::size_t i = 0; i < dq.size(); ++i) ASSERT_NEAR(dq[i], want.dq[i], 1e-3);
  EXPECT_LE(relative_error(r.dkv, want.dkv), 1e-4);
}

TEST(AttentionExact, EveryRowChoosingTheSameKeyLosesNoPrecision) {
  auto rng = test_rng(58);
  const Case c = make_case(rng, {.rows = 700, .keys = 4, .heads = 2, .topk = 2}, DType::f32);
  Case live = c;
  const reference::Lists lists(700, {0, 2});
  const Results r = run(live, lists_tensor(lists, 2), 3);
  EXPECT_LE(relative_error(r.dkv, reference::attention(c.p, lists).dkv), 2e-6);
}

TEST_P(Attention, AccumulatorsAreAddedToAndOnlyTheGivenRowsAreWritten) {
  auto rng = test_rng(59);
  const Case c = make_case(rng, {.rows = 30, .keys = 60, .heads = 2, .topk = 8, .sink = true}, GetParam());
  const TopkLists lists = lists_tensor(random_lists(rng, c), 8);
  const Results whole = run(c, lists);
  Runner runner;
  Results parts = allocate_results(c, 8);
  const AttentionInputs in = c.attention(lists.indices, lists.length);
  std::vector<float> start(static_cast<std::size_t>(60 * 576));
  for (std::size_t i = 0; i < start.size(); ++i) start[i] = static_cast<float>(i % 7);
  parts.dkv = from_floats(DType::f32, {60, 576}, start);
  detail::cpu::sparse_mla_backward(runner.context, {20, 30}, in,
                                   {c.dout, whole.out, whole.lse, parts.dq, parts.dkv, parts.dsink});
  EXPECT_EQ(bytes_of(parts.dq.rows(0, 20)), bytes_of(poisoned(c.dtype, {20, 2, 576})));
  detail::cpu::sparse_mla_backward(runner.context, {0, 20}, in,
                                   {c.dout, whole.out, whole.lse, parts.dq, parts.dkv, parts.dsink});
  EXPECT_EQ(bytes_of(parts.dq), bytes_of(whole.dq));
  std::vector<double> want = values_of(whole.dkv);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(start[i]);
  EXPECT_LE(relative_error(parts.dkv, want), 1e-6);
  EXPECT_LE(relative_error(parts.dsink, values_of(whole.dsink)), 1e-6);
}

TEST(AttentionExact, RejectsListsThatPointOutside) {
  auto rng = test_rng(60);
  const Case c = make_case(rng, {.rows = 3, .keys = 10, .heads = 1, .topk = 4}, DType::f32);
  EXPECT_THROW(run(c, lists_tensor({{0}, {1, 10}, {}}, 4)), Error);
  TopkLists lists = lists_tensor({{0}, {1}, {}}, 4);
  for (const std::int32_t length : {-1, 5}) {
    lists.length.data_as<std::int32_t>()[2] = length;
    EXPECT_THROW(run(c, lists), Error);
  }
}

// Of some rows, with repetitions and holes in their lists.
TEST_P(Attention, TheBackwardGivesTheHeadSumsOfItsRows) {
  auto rng = test_rng(62);
  const Case c = make_case(rng, {.rows = 30, .keys = 60, .heads = 3, .topk = 8, .sink = true}, GetParam());
  reference::Lists lists = random_lists(rng, c);
  for (auto& list : lists) {
    if (list.size() < 3) continue;
    list.push_back(list[1]);
    list.insert(list.begin(), -1);
  }
  const TopkLists tensors = lists_tensor(lists, 11);
  const Results r = run(c, tensors);
  Runner runner;
  const Tensor sums = poisoned(DType::f32, {13, 11});
  detail::cpu::sparse_mla_backward(runner.context, {12, 25}, c.attention(tensors.indices, tensors.length),
                                   {c.dout, r.out, r.lse, r.dq, r.dkv, r.dsink, sums});
  const std::vector<double> got = values_of(sums), want = values_of(r.head_sums.rows(12, 13));
  EXPECT_LE(relative_error(sums, want), 1e-6);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i] == 0, want[i] == 0) << "entry " << i;
}

TEST_P(Attention, DenseHeadSumsMatchTheReference) {
  auto rng = test_rng(61);
  const Case c = make_case(rng, {.rows = 40, .keys = 200, .heads = 6, .topk = 8, .sink = true}, GetParam());
  const std::int64_t width = 165;
  for (const RowRange rows : {RowRange{0, 40}, RowRange{13, 29}}) {
    const Tensor sums = poisoned(DType::f32, {rows.size(), width});
    Runner runner(3);
    detail::cpu::dense_head_sums(runner.context, rows, c.indexer(), c.attention({}, {}), sums);
    std::vector<double> want(static_cast<std::size_t>(rows.size() * width));
    for (std::int64_t t = rows.begin; t < rows.end; ++t) {
      const auto i = static_cast<std::size_t>(t);
      std::vector<std::int64_t> keys(static_cast<std::size_t>(c.p.end[i] - c.p.begin[i]));
      std::iota(keys.begin(), keys.end(), c.p.begin[i]);
      const auto row = reference::head_sums(c.p, t, keys);
      std::copy(row.begin(), row.end(), want.begin() + (t - rows.begin) * width);
    }
    EXPECT_LE(relative_error(sums, want), 2e-5);
  }
}

}  // namespace
}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <set>

#include "kernels_support.hpp"

namespace tandem::testing_gpu {
namespace {

using testing::bytes_of;
using testing::list_of;
using testing::poisoned_lists;
using testing::poisoned_state;
using testing::test_rng;

constexpr float inf = std::numeric_limits<float>::infinity();

IndexerStep whole_step(const Case& c) { return {{{0, c.p.rows}}, {{0, c.p.keys}}, {}, true, true}; }

/// Random cuts of the keys, dealt to a few steps in random order; the rows in two ranges.
std::vector<IndexerStep> random_steps(std::mt19937_64& rng, const Case& c) {
  const auto number = [&](std::int64_t below) {
    return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(below));
  };
  std::set<std::int64_t> cuts{0, c.p.keys};
  for (int i = 0; i < 12; ++i) cuts.insert(number(c.p.keys));
  std::vector<IndexerStep> steps(1 + rng() % 4);
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    steps[rng() % steps.size()].keys.push_back({*cut, *std::next(cut)});
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t middle = c.p.rows / 3;
    steps[i].rows = {{0, middle}, {middle, c.p.rows}};
    steps[i].first = i == 0;
    steps[i].last = i + 1 == steps.size();
  }
  return steps;
}

class TopkOnGpu : public KernelsOnGpu {
 protected:
  TopkLists lists_on_gpu(const Case& c) const {
    const TopkLists t = poisoned_lists(c.p.rows, c.p.topk);
    return {up(t.indices), up(t.length), up(t.nan_count)};
  }
  TopkLists run(const Case& g, const std::vector<IndexerStep>& steps) const {
    const TopkLists lists = lists_on_gpu(g);
    const TopkState empty = poisoned_state(g.p.rows, g.p.topk);
    const TopkState state{up(empty.scores), up(empty.indices), up(empty.length)};
    for (const IndexerStep& step : steps) {
      const IndexerInputs in = indexer(g, step);
      kernels_->indexer_topk(step, in, state, lists, stream_);
      finish();
    }
    return {down(lists.indices), down(lists.length), down(lists.nan_count)};
  }
  TopkLists run_whole(const Case& c) const { return run(on_gpu(c), {whole_step(c)}); }
  TopkLists run_on_cpu(const Case& c) const {
    const TopkLists lists = poisoned_lists(c.p.rows, c.p.topk);
    cpu_->indexer_topk(whole_step(c), c.indexer(), {}, lists, cpu_stream_);
    cpu_stream_.synchronize(soon_enough());
    return lists;
  }
};

void expect_same(const TopkLists& a, const TopkLists& b) {
  EXPECT_EQ(bytes_of(a.indices), bytes_of(b.indices));
  EXPECT_EQ(bytes_of(a.length), bytes_of(b.length));
  EXPECT_EQ(*a.nan_count.data_as<std::int64_t>(), *b.nan_count.data_as<std::int64_t>());
}

/// Small integers and quarters: every order of summing gives the same score, and many scores are equal.
void make_exact(std::mt19937_64& rng, Case& c) {
  const auto draw = [&] { return static_cast<float>(static_cast<int>(rng() % 5) - 2); };
  for (float& x : c.p.index_q) x = draw();
  for (float& x : c.p.index_k) x = draw();
  for (float& x : c.p.index_w) x = draw() / 4;
  for (float& x : c.p.index_k_scale) x = std::ldexp(1.0F, static_cast<int>(rng() % 3) - 1);
  c.refresh();
}

/// One query head that reads column 0 of the keys: their scores are `score`, exactly. Every row sees all keys.
Case case_with_scores(std::int64_t rows, std::int64_t topk, const std::vector<float>& score) {
  auto rng = test_rng(10);
  Case c = testing::make_case(
      rng, {.rows = rows, .keys = std::ssize(score), .heads = 1, .index_heads = 1, .dim = 16, .topk = topk},
      DType::f32);
  c.p.relu = false;
  std::fill(c.p.begin.begin(), c.p.begin.end(), 0);
  std::fill(c.p.end.begin(), c.p.end.end(), c.p.keys);
  std::fill(c.p.index_q.begin(), c.p.index_q.end(), 0.0F);
  std::fill(c.p.index_k.begin(), c.p.index_k.end(), 0.0F);
  for (std::int64_t t = 0; t < rows; ++t) {
    c.p.index_q[static_cast<std::size_t>(t * index_dim)] = 1;
    c.p.index_w[static_cast<std::size_t>(t)] = 1;
  }
  for (std::size_t i = 0; i < score.size(); ++i) c.p.index_k[i * index_dim] = score[i];
  c.refresh();
  return c;
}

TEST_P(TopkOnGpu, ExactScoresGiveTheCpusListsWhateverTheSteps) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8e4m3}) {
    for (const auto& [heads, topk] :
         {std::pair{1, 1}, {2, 7}, {3, 64}, {8, 64}, {16, 130}, {16, 128}, {32, 512}, {64, 64}, {70, 33}}) {
      auto rng = test_rng(20 + static_cast<std::uint64_t>(heads));
      const std::int64_t rows = heads > 16 ? 20 : 60;
      Case c = testing::make_case(
          rng,
          {.rows = rows, .keys = 700, .heads = 1, .index_heads = heads, .dim = 16, .topk = topk, .relu = heads != 3},
          dtype);
      make_exact(rng, c);
      SCOPED_TRACE(::testing::Message() << "Hi " << heads << ", K " << topk);
      const TopkLists wanted = run_on_cpu(c);
      const Case g = on_gpu(c);
      expect_same(run(g, {whole_step(c)}), wanted);
      for (int trial = 0; trial < 2; ++trial) expect_same(run(g, random_steps(rng, c)), wanted);
    }
  }
}

TEST_P(TopkOnGpu, ScoresOfEveryShapeGiveTheCpusLists) {
  const std::int64_t n = 1500;
  auto rng = test_rng(11);
  const std::vector<std::pair<const char*, std::function<float(std::int64_t)>>> shapes = {
      {"ascending", [](std::int64_t i) { return static_cast<float>(i); }},
      {"descending", [](std::int64_t i) { return static_cast<float>(-i); }},
      {"all equal", [](std::int64_t) { return 3.0F; }},
      {"low bits differ", [&](std::int64_t) { return 1.0F + static_cast<float>(rng() % 1024) * 0x1p-23F; }},
      {"plateau of zeros of both signs",
       [&](std::int64_t i) { return i % 97 == 5 ? 1.0F : (rng() % 2 == 0 ? 0.0F : -0.0F); }},
      {"NaN and infinities", [](std::int64_t i) { return i % 3 == 0 ? NAN
                                                         : i == 100 ? inf
                                                         : i == 200 ? 5
                                                                    : -inf; }},
      {"NaN", [](std::int64_t) { return NAN; }},
  };
  for (const auto& [name, score] : shapes) {
    std::vector<float> scores(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) scores[static_cast<std::size_t>(i)] = score(i);
    for (const std::int64_t topk : {1, 64, 1001, 1499}) {
      SCOPED_TRACE(::testing::Message() << name << ", K " << topk);
      const Case c = case_with_scores(2, topk, scores);
      expect_same(run_whole(c), run_on_cpu(c));
    }
  }
}

/// The first column of row t of the queries is code t, that of key j code j; of half of the keys others are set, too.
TEST_P(TopkOnGpu, EveryE4m3CodeGivesTheCpusLists) {
  auto rng = test_rng(12);
  Case c = testing::make_case(rng, {.rows = 256, .keys = 256, .heads = 1, .index_heads = 1, .dim = 16, .topk = 100},
                              DType::f8e4m3);
  c.p.relu = false;
  std::fill(c.p.begin.begin(), c.p.begin.end(), 0);
  std::fill(c.p.end.begin(), c.p.end.end(), c.p.keys);
  std::fill(c.p.index_w.begin(), c.p.index_w.end(), 0.5F);
  c.refresh();
  std::memset(c.index_q.data(), 0, bytes_in(c.index_q));
  std::memset(c.index_k.data(), 0, bytes_in(c.index_k));
  for (std::int64_t i = 0; i < 256; ++i) {
    auto* const q = c.index_q.data_as<std::uint8_t>() + i * index_dim;
    auto* const k = c.index_k.data_as<std::uint8_t>() + i * index_dim;
    q[0] = k[0] = static_cast<std::uint8_t>(i);
    q[1 + i % 127] = 0x38;  // 1
    for (std::int64_t column = 1; i % 2 == 1 && column < index_dim; ++column) k[column] = 0x01;
  }
  const TopkLists wanted = run_on_cpu(c);
  EXPECT_GT(*wanted.nan_count.data_as<std::int64_t>(), 0);
  expect_same(run_whole(c), wanted);
}

TEST_P(TopkOnGpu, ScalesOfE4m3KeysMultiplyTheirScores) {
  auto rng = test_rng(13);
  for (const bool column : {false, true}) {
    Case c = testing::make_case(rng, {.rows = 40, .keys = 600, .heads = 1, .index_heads = 2, .dim = 16, .topk = 30},
                                DType::f8e4m3);
    make_exact(rng, c);
    const float special[] = {NAN, inf, -inf, 0, -0.0F, -3, 0x1p-140F, 1e38F};
    for (std::size_t key = 0; key < c.p.index_k_scale.size(); key += 3) c.p.index_k_scale[key] = special[key / 3 % 8];
    c.refresh();
    if (column) c.index_k_scale = testing::from_floats(DType::f32, {c.p.keys, 1}, c.p.index_k_scale);
    const TopkLists wanted = run_on_cpu(c);
    const Case g = on_gpu(c);
    expect_same(run(g, {whole_step(c)}), wanted);
    expect_same(run(g, random_steps(rng, c)), wanted);
  }
}

TEST_P(TopkOnGpu, RowsThatSeeAtMostKTakeAllWithoutScoring) {
  Case c = case_with_scores(5, 5, std::vector<float>(9, NAN));
  c.p.begin = {0, 2, 3, 4, 9};
  c.p.end = {6, 6, 3, 9, 9};
  expect_same(run_whole(c), run_on_cpu(c));
}

TEST_P(TopkOnGpu, RandomScoresDifferFromTheReferenceInNearTiesOnly) {
  int near_ties = 0;
  std::int64_t scored = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8e4m3}) {
    for (const auto& [heads, topk] : {std::pair{1, 24}, {5, 24}, {40, 24}, {8, 64}, {64, 128}}) {
      auto rng = test_rng(30 + static_cast<std::uint64_t>(heads));
      const Case c = testing::make_case(
          rng, {.rows = 60, .keys = 400, .heads = 1, .index_heads = heads, .dim = 16, .topk = topk}, dtype);
      const Case g = on_gpu(c);
      const TopkLists lists = run(g, {whole_step(c)});
      expect_same(run(g, random_steps(rng, c)), lists);
      for (std::int64_t t = 0; t < c.p.rows; ++t, ++scored) {
        const auto verdict = reference::compare_topk(c.p, t, list_of(lists, t));
        EXPECT_NE(verdict, reference::SetVerdict::mismatch) << "row " << t << ", Hi " << heads;
        near_ties += verdict == reference::SetVerdict::near_tie ? 1 : 0;
      }
    }
  }
  std::printf("%d of %lld rows differ in near ties\n", near_ties, static_cast<long long>(scored));
  EXPECT_LE(near_ties, 15);
}

TEST_P(TopkOnGpu, LargeKAndManyKeys) {
  for (const auto& [topk, keys, heads] :
       {std::tuple{2048, 9000, 2}, {5000, 9000, 1}, {8192, 9000, 1}, {2048, 9000, 8}, {8192, 9000, 64}}) {
    auto rng = test_rng(40);
    Case c = testing::make_case(
        rng, {.rows = 4, .keys = keys, .heads = 1, .index_heads = heads, .dim = 16, .topk = topk}, DType::bf16);
    std::fill(c.p.begin.begin(), c.p.begin.end(), 0);
    make_exact(rng, c);
    SCOPED_TRACE(topk);
    const TopkLists wanted = run_on_cpu(c);
    const Case g = on_gpu(c);
    expect_same(run(g, {whole_step(c)}), wanted);
    expect_same(run(g, random_steps(rng, c)), wanted);
  }
}

TEST_P(TopkOnGpu, RowsMayLieApartAndUnaligned) {
  for (const auto& [dtype, heads, topk] : {std::tuple{DType::f32, 3, 10},
                                           {DType::bf16, 3, 10},
                                           {DType::f8e4m3, 3, 10},
                                           {DType::bf16, 8, 64},
                                           {DType::f8e4m3, 16, 64}}) {
    auto rng = test_rng(33);
    const Case c = testing::make_case(
        rng, {.rows = 30, .keys = 90, .heads = 1, .index_heads = heads, .dim = 16, .topk = topk}, dtype);
    Case apart = on_gpu(c);
    std::vector<Tensor> memory;
    const auto spread = [&](const Tensor& t, std::int64_t gap) {
      const std::int64_t stride = t.row_elements() + gap;
      const Tensor all = testing::poisoned(t.dtype(), {t.size(0), stride});
      for (std::int64_t i = 0; i < t.size(0); ++i)
        std::memcpy(all.rows(i, 1).data(), t.rows(i, 1).data(), t.row_bytes());
      memory.push_back(up(all));
      void* const data = memory.back().data();
      return t.dims() == 3
                 ? Tensor::from_raw(data, t.dtype(), {t.size(0), t.size(1), t.size(2)}, {stride, t.size(2), 1})
                 : Tensor::from_raw(data, t.dtype(), {t.size(0), t.size(1)}, {stride, 1});
    };
    apart.index_q = spread(c.index_q, 3);
    apart.index_k = spread(c.index_k, 1);
    apart.index_w = spread(c.index_w, 5);
    expect_same(run(apart, {whole_step(c)}), run_whole(c));
  }
}

TEST_P(TopkOnGpu, NoRowsNoKeys) {
  auto rng = test_rng(34);
  run_whole(testing::make_case(rng, {.rows = 0, .keys = 0, .heads = 1, .dim = 16}, DType::f32));
  Case blind = testing::make_case(rng, {.rows = 3, .keys = 3, .heads = 1, .dim = 16}, DType::f32);
  blind.p.end = blind.p.begin;
  const TopkLists lists = run_whole(blind);
  EXPECT_EQ(bytes_of(lists.indices), std::vector<std::uint8_t>(3 * 16 * 4, 0xFF));
  EXPECT_EQ(testing::values_of(lists.length), (std::vector<double>{0, 0, 0}));
}

TEST_P(TopkOnGpu, RejectsWhatItCannotDo) {
  auto rng = test_rng(35);
  const Case c = testing::make_case(rng, {.rows = 8, .keys = 20, .heads = 1, .dim = 16, .topk = 4}, DType::f32);
  const Case g = on_gpu(c);
  const TopkLists lists = lists_on_gpu(c);
  const auto message = [&](const IndexerInputs& in, const Stream& stream) -> std::string {
    try {
      kernels_->indexer_topk(whole_step(c), in, {}, lists, stream);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  const IndexerInputs good = indexer(g, whole_step(c));
  EXPECT_EQ(message(good, stream_), "accepted");
  IndexerInputs bad = good;
  bad.bounds = {};
  EXPECT_THAT(message(bad, stream_), ::testing::HasSubstr("bounds: kernels of a GPU need dense i32 [8, 2]"));
  bad = good;
  bad.step_rows = good.bounds;
  EXPECT_THAT(message(bad, stream_), ::testing::HasSubstr("step_rows: "));
  bad = good;
  bad.index_w = {};
  EXPECT_THAT(message(bad, stream_), ::testing::HasSubstr("index_w: "));
  bad = good;
  bad.index_k_scale = up(testing::zeros(DType::f32, {20}));
  EXPECT_THAT(message(bad, stream_), ::testing::HasSubstr("index_k_scale: given, but index_k is f32"));
  EXPECT_THROW(cuda_kernels(*cpu_device_), Error);
  Case wide = testing::make_case(rng, {.rows = 1, .keys = 20, .heads = 1, .dim = 16, .topk = 8193}, DType::f32);
  const IndexerStep step = whole_step(wide);
  try {
    const Case on = on_gpu(wide);
    kernels_->indexer_topk(step, indexer(on, step), {}, lists_on_gpu(wide), stream_);
    ADD_FAILURE() << "K of 8193 was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("at most 8192"));
  }
  finish();
}

INSTANTIATE_TEST_SUITE_P(Kernels, TopkOnGpu, ::testing::ValuesIn(kernel_sets), name_of_set);

}  // namespace
}  // namespace tandem::testing_gpu

// SPDX-License-Identifier: Apache-2.0
// The selection from given scores.
#include <cmath>
#include <functional>
#include <limits>

#include "kernels_support.hpp"

namespace tandem::testing_gpu {
namespace {

using testing::bytes_of;
using testing::poisoned_lists;
using testing::test_rng;

constexpr float inf = std::numeric_limits<float>::infinity();

class SelectTopkOnGpu : public KernelsOnGpu {
 protected:
  /// Rows that see all, none, a few, and stretches in the middle; rows lie `gap` elements apart.
  void expect_cpus_lists(std::int64_t rows, std::int64_t keys, std::int64_t topk, std::int64_t gap,
                         const std::function<float(std::int64_t)>& score) {
    auto rng = test_rng(80);
    std::vector<std::int64_t> begin(static_cast<std::size_t>(rows)), end(begin.size());
    std::vector<std::int32_t> bounds;
    for (std::size_t t = 0; t < begin.size(); ++t) {
      const auto a = static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(keys + 1));
      const auto b = static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(keys + 1));
      begin[t] = t == 0 ? 0 : std::min(a, b);
      end[t] = t == 0 ? keys : std::max(a, b);
      bounds.push_back(static_cast<std::int32_t>(begin[t]));
      bounds.push_back(static_cast<std::int32_t>(end[t]));
    }
    const Tensor all = testing::poisoned(DType::f32, {rows, keys + gap});
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t i = 0; i < keys; ++i) all.data_as<float>()[t * (keys + gap) + i] = score(i);
    }
    const auto matrix = [&](const Tensor& memory, const Tensor& table) {
      const Tensor scores = Tensor::from_raw(memory.data(), DType::f32, {rows, keys}, {keys + gap, 1});
      return ScoreMatrix{scores, begin, end, topk, table};
    };
    const TopkLists wanted = poisoned_lists(rows, topk);
    cpu_->select_topk(matrix(all, {}), wanted, cpu_stream_);
    cpu_stream_.synchronize(soon_enough());

    const TopkLists blank = poisoned_lists(rows, topk);
    const TopkLists lists{up(blank.indices), up(blank.length), up(blank.nan_count)};
    const Tensor there = up(all), table_there = table(bounds, 2);
    kernels_->select_topk(matrix(there, table_there), lists, stream_);
    finish();
    EXPECT_EQ(bytes_of(down(lists.indices)), bytes_of(wanted.indices));
    EXPECT_EQ(bytes_of(down(lists.length)), bytes_of(wanted.length));
    EXPECT_EQ(bytes_of(down(lists.nan_count)), bytes_of(wanted.nan_count));
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, SelectTopkOnGpu, ::testing::ValuesIn(kernel_sets), name_of_set);

TEST_P(SelectTopkOnGpu, ScoresOfEveryShapeGiveTheCpusLists) {
  auto rng = test_rng(81);
  const std::vector<std::pair<const char*, std::function<float(std::int64_t)>>> shapes = {
      {"random", [&](std::int64_t) { return static_cast<float>(rng() % 100000) - 50000.0F; }},
      {"ascending", [](std::int64_t i) { return static_cast<float>(i); }},
      {"descending", [](std::int64_t i) { return static_cast<float>(-i); }},
      {"equal", [](std::int64_t) { return 3.0F; }},
      {"zeros of both signs", [&](std::int64_t) { return rng() % 2 == 0 ? 0.0F : -0.0F; }},
      {"NaN and infinities", [](std::int64_t i) { return i % 3 == 0     ? NAN
                                                         : i % 100 == 1 ? inf
                                                                        : -inf; }},
      {"NaN", [](std::int64_t) { return NAN; }},
  };
  for (const auto& [name, score] : shapes) {
    for (const std::int64_t topk : {1, 64, 1001, 1500}) {
      SCOPED_TRACE(::testing::Message() << name << ", K " << topk);
      expect_cpus_lists(20, 1500, topk, 0, score);
      expect_cpus_lists(3, 1500, topk, 7, score);
    }
  }
}

TEST_P(SelectTopkOnGpu, LargeKAndManyKeys) {
  auto rng = test_rng(82);
  for (const std::int64_t topk : {2048, 8192}) {
    expect_cpus_lists(4, 70000, topk, 0, [&](std::int64_t) { return static_cast<float>(rng() % 5000); });
  }
}

TEST_P(SelectTopkOnGpu, NeedsBoundsInTheGpusMemory) {
  const std::vector<std::int64_t> begin{0}, end{9};
  const Tensor scores = up(testing::zeros(DType::f32, {1, 9}));
  const TopkLists lists{up(testing::zeros(DType::i32, {1, 2})), up(testing::zeros(DType::i32, {1})),
                        up(testing::zeros(DType::i64, {1}))};
  try {
    kernels_->select_topk({scores, begin, end, 2, {}}, lists, stream_);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("bounds: kernels of a GPU need dense i32 [1, 2]"));
  }
}

}  // namespace
}  // namespace tandem::testing_gpu

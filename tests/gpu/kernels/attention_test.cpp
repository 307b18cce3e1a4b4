// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels_support.hpp"

namespace tandem::testing_gpu {
namespace {

using testing::bytes_of;
using testing::lists_tensor;
using testing::poisoned;
using testing::test_rng;
using testing::values_of;
using testing::zeros;

struct Results {
  Tensor out, lse, head_sums, dq, dkv, dsink, backward_sums;
};

class AttentionOnGpu : public KernelsOnGpu {
 protected:
  /// Poisoned, but for what is added to.
  static Results allocate(const Case& c, std::int64_t topk) {
    const auto& p = c.p;
    return {poisoned(c.dtype, {p.rows, p.heads, value_dim}),
            poisoned(DType::f32, {p.rows, p.heads}),
            poisoned(DType::f32, {p.rows, topk}),
            poisoned(c.dtype, {p.rows, p.heads, p.dim}),
            zeros(DType::f32, {p.keys, p.dim}),
            p.sink.empty() ? Tensor() : zeros(DType::f32, {p.heads}),
            poisoned(DType::f32, {p.rows, topk})};
  }
  static void enqueue(KernelSet& kernels, const Stream& stream, const Case& c, const TopkLists& lists,
                      const Results& r) {
    const AttentionInputs in = c.attention(lists.indices, lists.length);
    kernels.sparse_mla_forward(in, {r.out, r.lse, r.head_sums}, stream);
    // In two parts, as the query blocks of a plan come.
    const std::int64_t middle = c.p.rows / 3;
    AttentionGradients grads{c.dout, r.out, r.lse, r.dq, r.dkv, r.dsink};
    for (const RowRange rows : {RowRange{middle, c.p.rows}, RowRange{0, middle}}) {
      grads.head_sums = r.backward_sums.rows(rows.begin, rows.size());
      kernels.sparse_mla_backward(rows, in, grads, stream);
    }
  }
  Results up_all(const Results& r) const {
    return {up(r.out), up(r.lse), up(r.head_sums), up(r.dq), up(r.dkv), up(r.dsink), up(r.backward_sums)};
  }
  Results run_without_checking(const Case& c, const TopkLists& lists) const {
    const Results r = up_all(allocate(c, lists.indices.size(1)));
    const Case g = on_gpu(c);
    const TopkLists there{up(lists.indices), up(lists.length), {}};
    enqueue(*kernels_, stream_, g, there, r);
    return {down(r.out), down(r.lse), down(r.head_sums), down(r.dq), down(r.dkv), down(r.dsink), down(r.backward_sums)};
  }
  /// A call alone: the next one would already throw what this one found.
  Tensor out_without_checking(const Case& c, const TopkLists& lists) const {
    const Results r = up_all(allocate(c, lists.indices.size(1)));
    const Case g = on_gpu(c);
    kernels_->sparse_mla_forward(g.attention(up(lists.indices), up(lists.length)), {r.out, r.lse, {}}, stream_);
    return down(r.out);
  }
  Results run(const Case& c, const TopkLists& lists) const {
    Results r = run_without_checking(c, lists);
    finish();
    return r;
  }
  Results run_on_cpu(const Case& c, const TopkLists& lists) const {
    const Results r = allocate(c, lists.indices.size(1));
    enqueue(*cpu_, cpu_stream_, c, lists, r);
    cpu_stream_.synchronize(soon_enough());
    return r;
  }
  void expect_reference(const Case& c, const reference::Lists& lists, const Results& r, const Results& of_cpu) const {
    const auto want = reference::attention(c.p, lists);
    expect_as_good(r.out, of_cpu.out, want.out, "out");
    expect_as_good(r.lse, of_cpu.lse, want.lse, "lse");
    expect_as_good(r.dq, of_cpu.dq, want.dq, "dq");
    // Hopper's products take P and dS in bf16, each rounded by 2^-9 at most and by half of that on average: the bound
    // is twice what that makes of a sum.
    const bool rounds = GetParam().which == CudaKernels::sm90 && c.dtype == DType::bf16;
    expect_as_good(r.dkv, of_cpu.dkv, want.dkv, "dkv", rounds ? 0x1p-9 : 2e-6);
    EXPECT_LE(testing::relative_error(r.head_sums, values_of(of_cpu.head_sums)), 2e-5);
    EXPECT_LE(testing::relative_error(r.backward_sums, values_of(of_cpu.head_sums)), 2e-5);
    if (c.p.sink.empty()) return;
    // A sum of numbers of either sign that may cancel: judged by the size of its terms, and out is rounded.
    const double u = c.dtype == DType::bf16 ? 0x1p-9 : 0x1p-24;
    const double deviation = u * std::sqrt(512.0 * static_cast<double>(c.p.rows));
    for (std::size_t h = 0; h < want.dsink.size(); ++h) {
      EXPECT_NEAR(values_of(r.dsink)[h], want.dsink[h], 8 * deviation + 1e-5 * std::fabs(want.dsink[h]));
    }
  }
};

TEST_P(AttentionOnGpu, MatchesTheReferenceAsTheCpuDoes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [heads, dim, topk, sink] : {std::tuple{3, 576, 16, false},
                                                 {4, 512, 70, true},
                                                 {1, 576, 1, true},
                                                 {16, 576, 37, true},
                                                 {19, 512, 130, false},
                                                 {128, 576, 20, true},
                                                 {3, 576, 64, true},
                                                 {8, 512, 64, false},
                                                 {16, 576, 128, true},
                                                 {24, 576, 64, false},
                                                 {32, 576, 192, true},
                                                 {64, 512, 64, true},
                                                 {100, 576, 64, false},
                                                 {128, 576, 128, true}}) {
      auto rng = test_rng(40 + static_cast<std::uint64_t>(heads));
      const std::int64_t rows = heads > 16 ? 7 : 30;
      const Case c = testing::make_case(
          rng, {.rows = rows, .keys = 160, .heads = heads, .dim = dim, .topk = topk, .sink = sink}, dtype);
      const reference::Lists lists = random_lists(rng, c);
      SCOPED_TRACE(::testing::Message() << "heads " << heads << ", dim " << dim << ", K " << topk);
      const TopkLists tensors = lists_tensor(lists, topk);
      expect_reference(c, lists, run(c, tensors), run_on_cpu(c, tensors));
    }
  }
}

TEST_P(AttentionOnGpu, OrderRepetitionsAndHolesOfAListDoNotCount) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto rng = test_rng(51);
    const Case c = testing::make_case(rng, {.rows = 30, .keys = 90, .heads = 3, .topk = 33, .sink = true}, dtype);
    const reference::Lists lists = random_lists(rng, c);
    reference::Lists half_messy = messy(rng, lists, 12);
    for (std::size_t t = 0; t < lists.size(); t += 2) half_messy[t] = lists[t];
    const TopkLists tensors = lists_tensor(half_messy, 64);
    const Results r = run(c, tensors);
    const Results of_cpu = run_on_cpu(c, tensors);
    expect_reference(c, lists, r, of_cpu);
    // Entries of head sums that are 0 there, and no others, are 0 here: repetitions, holes, those beyond the length.
    const std::vector<double> wanted = values_of(of_cpu.head_sums);
    for (const Tensor& t : {r.head_sums, r.backward_sums}) {
      const std::vector<double> sums = values_of(t);
      for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i] == 0, wanted[i] == 0) << "entry " << i;
    }
  }
}

TEST_P(AttentionOnGpu, DeadRowsBesideFullOnesReadNothing) {
  auto rng = test_rng(52);
  for (const auto& [sink, topk] : {std::pair{false, 9}, {true, 9}, {false, 64}, {true, 64}}) {
    Case c = testing::make_case(rng, {.rows = 6, .keys = 40, .heads = 2, .topk = topk, .sink = sink}, DType::bf16);
    const std::vector<std::int64_t> full = {1, 3, 5, 7, 11, 13, 17, 19, 23};
    const reference::Lists lists = {{}, full, {-1, -5}, {}, full, {}};
    // What is not selected, and a dead row's dout, must not matter.
    for (std::int64_t i = 0; i < 2 * value_dim; ++i) c.p.dout[static_cast<std::size_t>(i)] = NAN;
    for (std::int64_t i = 24 * c.p.dim; i < 40 * c.p.dim; ++i) c.p.kv[static_cast<std::size_t>(i)] = NAN;
    for (std::int64_t i = 0; i < c.p.dim; ++i) c.p.kv[static_cast<std::size_t>(i)] = NAN;
    c.refresh();
    const Results r = run(c, lists_tensor(lists, topk));
    for (const std::int64_t t : {0, 2, 3, 5}) {
      for (const double x : values_of(r.out.rows(t, 1))) ASSERT_EQ(x, 0);
      for (const double x : values_of(r.dq.rows(t, 1))) ASSERT_EQ(x, 0);
      for (const double x : values_of(r.head_sums.rows(t, 1))) ASSERT_EQ(x, 0);
      for (const double x : values_of(r.backward_sums.rows(t, 1))) ASSERT_EQ(x, 0);
      for (std::int64_t h = 0; h < 2; ++h) {
        const float lse = r.lse.data_as<float>()[t * 2 + h];
        EXPECT_EQ(lse, sink ? c.p.sink[static_cast<std::size_t>(h)] : -std::numeric_limits<float>::infinity());
      }
    }
    for (const Tensor& t : {r.out, r.dq, r.dkv, r.dsink}) {
      if (!t.valid()) continue;
      for (const double x : values_of(t)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_P(AttentionOnGpu, LargeLogitsAndSaturatingSinks) {
  auto rng = test_rng(57);
  Case c = testing::make_case(rng, {.rows = 12, .keys = 40, .heads = 2, .topk = 9, .sink = true}, DType::f32);
  for (float& x : c.p.q) x *= 20;  // logits of some 30, at most about 100
  c.p.sink = {1000.0F, -1000.0F};
  c.refresh();
  const reference::Lists lists = random_lists(rng, c);
  const Results r = run(c, lists_tensor(lists, 9));
  const auto want = reference::attention(c.p, lists);
  EXPECT_LE(testing::relative_error(r.out, want.out), 1e-4);
  EXPECT_LE(testing::relative_error(r.lse, want.lse), 2e-6);
  // Where one probability is nearly 1, dP - delta cancels: dq is judged by the size of its terms, not by its own.
  const std::vector<double> dq = values_of(r.dq);
  for (std::size_t i = 0; i < dq.size(); ++i) ASSERT_NEAR(dq[i], want.dq[i], 1e-3);
  EXPECT_LE(testing::relative_error(r.dkv, want.dkv), 1e-4);
}

TEST_P(AttentionOnGpu, ForwardHasTheSameBitsInEveryRun) {
  auto rng = test_rng(58);
  const Case c =
      testing::make_case(rng, {.rows = 50, .keys = 300, .heads = 16, .topk = 128, .sink = true}, DType::bf16);
  const TopkLists lists = lists_tensor(random_lists(rng, c), 128);
  const Results first = run(c, lists);
  const Results second = run(c, lists);
  EXPECT_EQ(bytes_of(first.out), bytes_of(second.out));
  EXPECT_EQ(bytes_of(first.lse), bytes_of(second.lse));
  EXPECT_EQ(bytes_of(first.head_sums), bytes_of(second.head_sums));
  EXPECT_EQ(bytes_of(first.dq), bytes_of(second.dq));
}

TEST_P(AttentionOnGpu, APromiseThatListsArePlainChangesNoBit) {
  auto rng = test_rng(64);
  const Case c = testing::make_case(rng, {.rows = 40, .keys = 300, .heads = 16, .topk = 64, .sink = true}, DType::bf16);
  const TopkLists lists = lists_tensor(random_lists(rng, c), 64);
  const Results without = run(c, lists);
  const Results r = up_all(allocate(c, 64));
  const Case g = on_gpu(c);
  AttentionInputs in = g.attention(up(lists.indices), up(lists.length));
  in.plain_lists = true;
  kernels_->sparse_mla_forward(in, {r.out, r.lse, r.head_sums}, stream_);
  kernels_->sparse_mla_backward({0, 40}, in, {g.dout, r.out, r.lse, r.dq, r.dkv, r.dsink, r.backward_sums}, stream_);
  finish();
  EXPECT_EQ(bytes_of(down(r.out)), bytes_of(without.out));
  EXPECT_EQ(bytes_of(down(r.lse)), bytes_of(without.lse));
  EXPECT_EQ(bytes_of(down(r.dq)), bytes_of(without.dq));
  EXPECT_EQ(bytes_of(down(r.backward_sums)), bytes_of(without.backward_sums));
  EXPECT_LE(testing::relative_error(down(r.dkv), values_of(without.dkv)), 2e-6);
}

TEST_P(AttentionOnGpu, GradientsOfKeysAreAddedTo) {
  auto rng = test_rng(59);
  const Case c = testing::make_case(rng, {.rows = 20, .keys = 60, .heads = 2, .topk = 8, .sink = true}, DType::f32);
  const TopkLists lists = lists_tensor(random_lists(rng, c), 8);
  const Results whole = run(c, lists);
  Results start = allocate(c, 8);
  std::vector<float> values(static_cast<std::size_t>(60 * 576));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
  start.dkv = testing::from_floats(DType::f32, {60, 576}, values);
  const Results r = up_all(start);
  const Case g = on_gpu(c);
  const TopkLists there{up(lists.indices), up(lists.length), {}};
  enqueue(*kernels_, stream_, g, there, r);
  std::vector<double> want = values_of(whole.dkv);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(values[i]);
  EXPECT_LE(testing::relative_error(down(r.dkv), want), 1e-6);
  finish();
}

TEST_P(AttentionOnGpu, BadListsAreReportedOnceAndDoNoHarm) {
  auto rng = test_rng(60);
  const Case c = testing::make_case(rng, {.rows = 3, .keys = 10, .heads = 2, .topk = 4}, DType::f32);
  const auto report = [&]() -> std::string {
    try {
      kernels_->throw_if_failed();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "nothing";
  };
  const Results right = run(c, lists_tensor({{0}, {1}, {2, 3}}, 4));
  for (const std::int64_t entry : {std::int64_t{10}, std::int64_t{0x7FFFFFFF}}) {
    const Tensor out = out_without_checking(c, lists_tensor({{0}, {1, entry}, {2, 3}}, 4));
    EXPECT_EQ(bytes_of(out), bytes_of(right.out)) << "the entry was not ignored";
    EXPECT_THAT(report(), ::testing::HasSubstr("indices: row 1 has entry " + std::to_string(entry) + ", which is no"));
    EXPECT_EQ(report(), "nothing");
  }
  for (const std::int32_t length : {-1, 5, 0x7FFFFFFF}) {
    const TopkLists lists = lists_tensor({{0}, {1}, {2, 3}}, 4);
    lists.length.data_as<std::int32_t>()[2] = length;
    const Tensor out = out_without_checking(c, lists);
    EXPECT_EQ(bytes_of(out.rows(0, 2)), bytes_of(right.out.rows(0, 2)));
    // The next call says so as well.
    EXPECT_THROW(out_without_checking(c, lists), Error);
    EXPECT_EQ(report(), "nothing");
  }
  EXPECT_EQ(bytes_of(run(c, lists_tensor({{0}, {1}, {2, 3}}, 4)).out), bytes_of(right.out));
}

TEST_P(AttentionOnGpu, LongLists) {
  auto rng = test_rng(61);
  Case c = testing::make_case(rng, {.rows = 2, .keys = 9000, .heads = 2, .topk = 8192}, DType::bf16);
  std::fill(c.p.begin.begin(), c.p.begin.end(), 0);
  const reference::Lists lists = random_lists(rng, c);
  reference::Lists reversed = lists;
  for (auto& list : reversed) std::reverse(list.begin(), list.end());
  for (const reference::Lists& given : {lists, reversed}) {
    const TopkLists tensors = lists_tensor(given, 8192);
    expect_reference(c, lists, run(c, tensors), run_on_cpu(c, tensors));
  }
}

TEST_P(AttentionOnGpu, DenseHeadSumsMatchTheCpus) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto rng = test_rng(62);
    const Case c = testing::make_case(rng, {.rows = 30, .keys = 200, .heads = 18, .topk = 8, .sink = true}, dtype);
    const Case g = on_gpu(c);
    for (const RowRange rows : {RowRange{0, 30}, RowRange{13, 21}}) {
      const Tensor wanted = poisoned(DType::f32, {rows.size(), 165});
      cpu_->dense_head_sums(rows, c.indexer(), c.attention({}, {}), wanted, cpu_stream_);
      cpu_stream_.synchronize(soon_enough());
      const Tensor sums = up(poisoned(DType::f32, {rows.size(), 165}));
      const IndexerInputs bounds = indexer(g);
      kernels_->dense_head_sums(rows, bounds, g.attention({}, {}), sums, stream_);
      finish();
      EXPECT_LE(testing::relative_error(down(sums), values_of(wanted)), 2e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionOnGpu, ::testing::ValuesIn(kernel_sets), name_of_set);
INSTANTIATE_TEST_SUITE_P(DeterministicKernels, AttentionOnGpu, ::testing::ValuesIn(deterministic_sets), name_of_set);

class DeterministicAttention : public AttentionOnGpu {};

// Many rows that choose the same keys, lists in order and not: by atomics some sums would differ from run to run.
TEST_P(DeterministicAttention, GradientsHaveTheSameBitsInEveryRun) {
  EXPECT_TRUE(kernels_->deterministic());
  for (const auto& [dtype, heads, topk] :
       {std::tuple{DType::f32, 3, 40}, {DType::bf16, 3, 64}, {DType::bf16, 128, 128}}) {
    auto rng = test_rng(63);
    const std::int64_t rows = heads > 16 ? 120 : 160;
    const Case c =
        testing::make_case(rng, {.rows = rows, .keys = 160, .heads = heads, .topk = topk, .sink = true}, dtype);
    reference::Lists lists = random_lists(rng, c);
    for (std::size_t t = 0; t < lists.size(); t += 3) std::reverse(lists[t].begin(), lists[t].end());
    const TopkLists tensors = lists_tensor(lists, topk);
    const Results first = run(c, tensors);
    for (int i = 0; i < 4; ++i) {
      const Results again = run(c, tensors);
      ASSERT_EQ(bytes_of(again.dq), bytes_of(first.dq));
      ASSERT_EQ(bytes_of(again.dkv), bytes_of(first.dkv));
      ASSERT_EQ(bytes_of(again.dsink), bytes_of(first.dsink));
      ASSERT_EQ(bytes_of(again.backward_sums), bytes_of(first.backward_sums));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DeterministicAttention, ::testing::ValuesIn(deterministic_sets), name_of_set);

}  // namespace
}  // namespace tandem::testing_gpu

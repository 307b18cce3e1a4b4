// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>

#include "support/random.hpp"
#include "unit/dsa/forwarding_kernels.hpp"
#include "unit/dsa/run.hpp"

namespace tandem {
namespace {

using testing::Errors;
using testing::make_problem;
using testing::Problem;
using testing::Results;
using testing::run;
using testing::RunOptions;
using testing::Shape;

void expect_rows_without_keys_are_dead(const Problem& p, const Results& r) {
  const auto& g = p.global;
  auto zero = [](const std::vector<float>& v, std::int64_t row, std::int64_t n) {
    return std::all_of(v.begin() + row * n, v.begin() + (row + 1) * n, [](float x) { return x == 0; });
  };
  for (std::int64_t t = 0; t < g.rows; ++t) {
    const auto i = static_cast<std::size_t>(t);
    if (g.end[i] > g.begin[i]) continue;
    EXPECT_EQ(r.length[i], 0);
    EXPECT_TRUE(zero(r.out, t, g.heads * value_dim)) << "out of pad row " << t;
    EXPECT_TRUE(zero(r.dq, t, g.heads * g.dim)) << "dq of pad row " << t;
    EXPECT_TRUE(zero(r.dkv, t, g.dim)) << "dkv of pad row " << t;
    if (r.loss.empty()) continue;
    EXPECT_TRUE(zero(r.d_index_q, t, g.index_heads * index_dim)) << "d_index_q of pad row " << t;
    EXPECT_TRUE(zero(r.d_index_k, t, index_dim)) << "d_index_k of pad row " << t;
    EXPECT_TRUE(zero(r.d_index_w, t, g.index_heads)) << "d_index_w of pad row " << t;
    EXPECT_EQ(r.loss[i], 0);
  }
}

// Counts rows whose set is wrong although the gap is above the rounding bound.
int mismatches(const Problem& p, const Results& r) {
  int count = 0;
  const reference::Lists lists = testing::lists_of(r, p.global.topk);
  for (std::int64_t t = 0; t < p.global.rows; ++t) {
    const auto& list = lists[static_cast<std::size_t>(t)];
    count += reference::compare_topk(p.global, t, list) == reference::SetVerdict::mismatch;
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
  }
  return count;
}

struct Case {
  const char* name;
  std::vector<std::int64_t> lengths;
  std::int64_t pad = 0;
  Shape shape;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"one_document", {61}, 0, {}},
      {"packed_documents_with_empty_and_odd_ones", {17, 0, 1, 30, 3}, 0, {2, 3, 576, 4, false}},
      {"padded_documents", {9, 22, 0, 5}, 3, {}},
      {"fewer_tokens_than_ranks", {3}, 0, {}},
      {"more_slots_than_visible_keys", {20, 13}, 1, {2, 2, 512, 64, true}},
      {"nothing_at_all", {0}, 0, {}},
  };
  return all;
}

class Correctness : public ::testing::TestWithParam<std::tuple<std::size_t, Partition, int, const char*>> {};

TEST_P(Correctness, Fp32IsWithinRoundingOfFloat64ForEveryNumberOfRanks) {
  const Case& c = cases()[std::get<0>(GetParam())];
  auto rng = testing::test_rng(std::get<0>(GetParam()));
  const Problem problem = make_problem(rng, c.lengths, c.pad, c.shape, DType::f32);
  std::map<int, double> worst;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    RunOptions options;
    options.cluster.ranks = ranks;
    options.partition = std::get<1>(GetParam());
    options.cluster.queues = std::get<2>(GetParam());
    options.cluster.transport = std::get<3>(GetParam());
    const Results results = run(problem, options);
    if (HasFailure()) return;
    EXPECT_EQ(mismatches(problem, results), 0) << ranks << " ranks";
    expect_rows_without_keys_are_dead(problem, results);
    const Errors errors = testing::compare(problem, results, options.loss, options.dloss);
    worst[ranks] = errors.worst();
    EXPECT_LE(errors.worst(), 2e-5) << ranks << " ranks";
    EXPECT_LE(errors.worst(), 2 * worst[1] + 1e-7) << ranks << " ranks";
    if (ranks == 1) {
      EXPECT_EQ(results.gathered_bytes, 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Correctness,
                         ::testing::Combine(::testing::Range<std::size_t>(0, cases().size()),
                                            ::testing::Values(Partition::zigzag, Partition::contiguous),
                                            ::testing::Values(0, 1), ::testing::Values("loopback", "stream")),
                         [](const auto& info) {
                           return std::string(cases()[std::get<0>(info.param)].name) + "_" +
                                  to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == 0 ? "_free_" : "_one_queue_") + std::get<3>(info.param);
                         });

INSTANTIATE_TEST_SUITE_P(Staged, Correctness,
                         ::testing::Combine(::testing::Range<std::size_t>(0, cases().size()),
                                            ::testing::Values(Partition::zigzag), ::testing::Values(0, 1),
                                            ::testing::Values("staged:tcp")),
                         [](const auto& info) {
                           return std::string(cases()[std::get<0>(info.param)].name) +
                                  (std::get<2>(info.param) == 0 ? "_free" : "_one_queue");
                         });

TEST(Options, Bf16IsAtMostTwiceAsFarOffAsUnsharded) {
  auto rng = testing::test_rng(50);
  const Problem problem = make_problem(rng, {40, 21}, 1, {}, DType::bf16);
  double alone = 0;
  for (const int ranks : {1, 2, 4}) {
    for (const DType wire : {DType::f32, DType::bf16}) {
      RunOptions options;
      options.cluster.ranks = ranks;
      options.wire = wire;
      const Results results = run(problem, options);
      options.cluster.transport = "stream";
      EXPECT_TRUE(run(problem, options) == results) << ranks << " ranks, wire " << to_string(wire);
      if (HasFailure()) return;
      const double worst = testing::compare(problem, results, options.loss, options.dloss).worst();
      EXPECT_LE(worst, 0.02) << "a bf16 rounding is 0.004";
      if (ranks == 1) alone = worst;
      EXPECT_LE(worst, 2 * alone) << ranks << " ranks, wire " << to_string(wire);
    }
  }
}

TEST(Options, E4m3IndexerInputs) {
  auto rng = testing::test_rng(55);
  const Problem problem = make_problem(rng, {40, 0, 21}, 1, {}, DType::f32, DType::f8e4m3);
  for (const IndexerLossKind loss : {IndexerLossKind::sparse, IndexerLossKind::dense, IndexerLossKind::none}) {
    RunOptions options;
    options.cluster.ranks = 1;
    options.loss = loss;
    const Results alone = run(problem, options);
    for (const int ranks : {1, 2, 4}) {
      for (const char* transport : {"loopback", "stream", "staged:tcp"}) {
        options.cluster.ranks = ranks;
        options.cluster.transport = transport;
        options.keep_landed = ranks != 4;
        SCOPED_TRACE(::testing::Message() << ranks << " ranks over " << transport);
        const Results results = run(problem, options);
        if (HasFailure()) return;
        EXPECT_EQ(results.indices, alone.indices);
        EXPECT_EQ(results.out, alone.out);
        EXPECT_EQ(results.loss, alone.loss);
        EXPECT_EQ(results.d_index_q, alone.d_index_q);
        EXPECT_EQ(results.d_index_w, alone.d_index_w);
        EXPECT_EQ(mismatches(problem, results), 0);
        expect_rows_without_keys_are_dead(problem, results);
        EXPECT_LE(testing::compare(problem, results, loss, options.dloss).worst(), 2e-5);
      }
    }
  }
}

// What is exact as e4m3 and as bf16 selects the same keys and has the same gradients.
TEST(Options, ExactE4m3IndexerInputsAreThoseOfAnyType) {
  auto rng = testing::test_rng(56);
  Problem coded = make_problem(rng, {33, 20}, 0, {}, DType::f32, DType::f8e4m3);
  std::fill(coded.global.index_k_scale.begin(), coded.global.index_k_scale.end(), 1.0F);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem plain = coded;
    plain.index_dtype = dtype;
    plain.global.index_k_scale.clear();
    RunOptions options;
    options.cluster.ranks = 2;
    Results a = run(coded, options);
    Results b = run(plain, options);
    EXPECT_LT(b.gathered_bytes, 53U * 4 * (576 + 128));
    if (dtype == DType::bf16) b.d_index_q = a.d_index_q;  // which is rounded
    a.gathered_bytes = b.gathered_bytes = 0;
    EXPECT_TRUE(a == b) << to_string(dtype);
  }
}

TEST(Options, RanksMustAgreeOnTheTypeOfIndexerInputs) {
  testing::ClusterOptions cluster;
  cluster.ranks = 2;
  testing::run_cluster(cluster, [](Communicator& comm) {
    const std::vector<std::int64_t> cu{0, 8};
    const Plan plan(SequenceLayout::zigzag(cu, 2), comm.rank());
    DsaConfig config;
    if (comm.rank() == 1) config.index_dtype = DType::f8e4m3;
    DsaAttention attention(comm, cpu_kernels(), config);
    try {
      attention.prepare(plan);
      ADD_FAILURE() << "prepared";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::version_mismatch);
      const std::string text = e.what();
      EXPECT_NE(text.find("index_k bf16[128]"), std::string::npos) << text;
      EXPECT_NE(text.find("index_k_scale f32[1] over f32, index_k f8e4m3[128]"), std::string::npos) << text;
    }
  });
}

TEST(Options, DroppingLandedRowsChangesNothing) {
  auto rng = testing::test_rng(51);
  const Problem problem = make_problem(rng, {33, 12}, 0, {}, DType::f32);
  RunOptions options;
  options.cluster.ranks = 3;
  const Results kept = run(problem, options);
  for (const char* transport : {"loopback", "stream", "staged:loopback"}) {
    options.cluster.transport = transport;
    for (const bool keep : {false, true}) {
      options.keep_landed = keep;
      EXPECT_TRUE(run(problem, options) == kept) << transport << (keep ? ", kept" : ", dropped");
    }
  }
}

TEST(Options, DenseWarmUpLossCoversAllVisibleKeys) {
  auto rng = testing::test_rng(52);
  const Problem problem = make_problem(rng, {25, 0, 14}, 2, {2, 2, 576, 5, true}, DType::f32);
  for (const int ranks : {1, 3}) {
    RunOptions options;
    options.cluster.ranks = ranks;
    options.loss = IndexerLossKind::dense;
    const Results results = run(problem, options);
    if (HasFailure()) return;
    EXPECT_LE(testing::compare(problem, results, options.loss, options.dloss).worst(), 2e-5) << ranks << " ranks";
    expect_rows_without_keys_are_dead(problem, results);
  }
}

// The two passes compute P in different ways: the loss may differ by rounding, all else but its gradients by no bit.
TEST(Options, TheLossMayComeWithEitherPass) {
  auto rng = testing::test_rng(59);
  const Problem problem = make_problem(rng, {45, 0, 23}, 3, {}, DType::f32);
  for (const IndexerLossKind kind : {IndexerLossKind::sparse, IndexerLossKind::dense}) {
    for (const int ranks : {1, 2, 4}) {
      RunOptions options;
      options.cluster.ranks = ranks;
      options.loss = kind;
      const Results in_forward = run(problem, options);
      options.loss_pass = LossPass::backward;
      for (const bool keep : {true, false}) {
        options.keep_landed = keep;
        const Results results = run(problem, options);
        if (HasFailure()) return;
        EXPECT_LE(testing::compare(problem, results, kind, options.dloss).worst(), 2e-5) << ranks << " ranks";
        EXPECT_EQ(results.out, in_forward.out);
        EXPECT_EQ(results.dq, in_forward.dq);
        EXPECT_EQ(results.dkv, in_forward.dkv);
        expect_rows_without_keys_are_dead(problem, results);
      }
    }
  }
}

// What the hook adds counts: with all of its mass on the first key of each list the target is that key alone.
TEST(Options, TheHookOfTheTargetRunsInEitherPass) {
  auto rng = testing::test_rng(60);
  const Problem problem = make_problem(rng, {40}, 0, {}, DType::f32);
  for (const LossPass pass : {LossPass::forward, LossPass::backward}) {
    RunOptions options;
    options.cluster.ranks = 2;
    options.loss_pass = pass;
    const Results without = run(problem, options);
    std::atomic<int> calls{0};
    options.target_hook = [&calls](const Tensor& head_sums, const Stream& stream) {
      ++calls;
      stream.run([head_sums] {
        for (std::int64_t t = 0; t < head_sums.size(0); ++t) {
          float* const row = head_sums.data_as<float>() + t * head_sums.stride(0);
          std::fill_n(row, head_sums.size(1), 0.0F);
          row[0] = 1;
        }
      });
    };
    const Results with = run(problem, options);
    EXPECT_EQ(calls, 2) << "once a rank";
    EXPECT_EQ(with.dkv, without.dkv);
    // The first row's only key has all of it either way.
    EXPECT_EQ(with.loss[0], without.loss[0]);
    const reference::Lists lists = testing::lists_of(with, problem.global.topk);
    std::vector<std::vector<double>> first_of_all;
    for (const auto& list : lists) first_of_all.emplace_back(list.size(), 0.0).at(0) = 1;
    const auto want = reference::indexer_loss(problem.global, &lists, {0, 40}, 0, &first_of_all);
    for (std::size_t t = 0; t < 40; ++t) {
      EXPECT_NEAR(with.loss[t], want.loss[t], 2e-5 * want.magnitude[t] + 1e-12) << "row " << t;
    }
    EXPECT_NE(with.loss, without.loss);
    EXPECT_NE(with.d_index_q, without.d_index_q);
  }
}

TEST(Options, RowsThatAreKeysAloneAskNothing) {
  auto rng = testing::test_rng(58);
  Problem problem = make_problem(rng, {37, 24}, 2, {}, DType::f32);
  RunOptions options;
  options.keys_only = {{0, 11}, {20, 29}, {45, 63}};
  options.plan.block_rows = 3;  // so that some blocks would have no query
  auto& g = problem.global;
  std::int64_t queries = 37 + 24;
  for (const RowRange& range : options.keys_only) {
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      const auto i = static_cast<std::size_t>(t);
      queries -= g.end[i] > g.begin[i] ? 1 : 0;
      g.end[i] = g.begin[i];
      const auto ask = [&](std::vector<float>& v, std::int64_t n) {
        std::fill_n(v.begin() + t * n, n, std::numeric_limits<float>::quiet_NaN());
      };
      ask(g.q, g.heads * g.dim);
      ask(g.dout, g.heads * value_dim);
      ask(g.index_q, g.index_heads * index_dim);
      ask(g.index_w, g.index_heads);
    }
  }
  g.loss_scale = 1.0 / static_cast<double>(queries);
  for (const int ranks : {1, 2, 5}) {
    for (const Partition partition : {Partition::zigzag, Partition::contiguous}) {
      options.cluster.ranks = ranks;
      options.partition = partition;
      options.loss_pass = ranks == 2 ? LossPass::backward : LossPass::forward;
      const Results results = run(problem, options);
      if (HasFailure()) return;
      EXPECT_EQ(mismatches(problem, results), 0) << ranks << " ranks";
      EXPECT_LE(testing::compare(problem, results, options.loss, options.dloss).worst(), 2e-5) << ranks << " ranks";
      for (std::int64_t t = 0; t < g.rows; ++t) {
        const auto i = static_cast<std::size_t>(t);
        if (g.end[i] > g.begin[i]) continue;
        EXPECT_EQ(results.length[i], 0) << t;
        EXPECT_EQ(results.loss[i], 0) << t;
        EXPECT_EQ(results.out[i * static_cast<std::size_t>(g.heads * value_dim)], 0) << t;
        EXPECT_EQ(results.dq[i * static_cast<std::size_t>(g.heads * g.dim)], 0) << t;
        EXPECT_EQ(results.d_index_q[i * static_cast<std::size_t>(g.index_heads * index_dim)], 0) << t;
      }
      EXPECT_NE(results.dkv[0], 0) << "the first row is a key of all others";
    }
  }
}

TEST(Options, WithoutLossThereAreNoIndexerGradients) {
  auto rng = testing::test_rng(53);
  const Problem problem = make_problem(rng, {30}, 0, {}, DType::f32);
  RunOptions options;
  options.cluster.ranks = 2;
  options.loss = IndexerLossKind::none;
  const Results results = run(problem, options);
  EXPECT_TRUE(results.d_index_q.empty());
  EXPECT_LE(testing::compare(problem, results, options.loss, options.dloss).worst(), 2e-5);
}

// Lists of the caller: unsorted, with repeats, -1 and positions that the row does not see.
TEST(Options, GivenListsReplaceTheIndexer) {
  auto rng = testing::test_rng(54);
  Problem problem = make_problem(rng, {26, 11}, 1, {}, DType::f32);
  auto& g = problem.global;
  reference::Lists expected(static_cast<std::size_t>(g.rows));
  for (std::int64_t t = 0; t < g.rows; ++t) {
    const auto i = static_cast<std::size_t>(t);
    for (std::int64_t k = 0; k < g.topk; ++k) {
      const auto position = static_cast<std::int32_t>(std::uniform_int_distribution<std::int64_t>(-2, g.rows + 1)(rng));
      problem.lists.push_back(position);
      if (position >= g.begin[i] && position < g.end[i]) expected[i].push_back(position);
    }
    std::sort(expected[i].begin(), expected[i].end());
    expected[i].erase(std::unique(expected[i].begin(), expected[i].end()), expected[i].end());
  }
  for (const int ranks : {1, 4}) {
    RunOptions options;
    options.cluster.ranks = ranks;
    options.loss = IndexerLossKind::none;
    const Results results = run(problem, options);
    if (HasFailure()) return;
    EXPECT_EQ(testing::lists_of(results, g.topk), expected);
    EXPECT_LE(testing::compare(problem, results, options.loss, options.dloss).worst(), 2e-5);
  }
}

class WideKernels : public testing::ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;
  ConcurrentRows concurrent_rows(std::int64_t heads, std::int64_t index_heads) const override {
    return {index_heads * 100 + 28, heads};
  }
};

TEST(Options, PlansAreMadeOfMultiplesOfWhatTheKernelsDoAtOnce) {
  testing::ClusterOptions cluster;
  cluster.ranks = 1;
  testing::run_cluster(cluster, [](Communicator& comm) {
    DsaConfig config;
    config.heads = 66;
    config.index_heads = 5;
    const DsaAttention cpu(comm, cpu_kernels(), config);
    EXPECT_EQ(cpu.plan_options().carry_rows, PlanOptions().carry_rows);
    EXPECT_EQ(cpu.plan_options().block_rows, PlanOptions().block_rows);
    const DsaAttention wide(comm, std::make_shared<WideKernels>(cpu_kernels()), config);
    const PlanOptions options = wide.plan_options({.chunk_tokens = 77, .carry_rows = 529, .block_rows = 264});
    EXPECT_EQ(options.chunk_tokens, 77);
    EXPECT_EQ(options.carry_rows, 2 * 528);
    EXPECT_EQ(options.block_rows, 264);
    EXPECT_EQ(wide.plan_options({.carry_rows = 1, .block_rows = 1}).block_rows, 66);
  });
}

TEST(Options, WrongInputsAreNamed) {
  testing::ClusterOptions cluster;
  cluster.ranks = 1;
  testing::run_cluster(cluster, [](Communicator& comm) {
    const std::vector<std::int64_t> cu{0, 8};
    const Plan plan(SequenceLayout::zigzag(cu, 1), 0);
    DsaConfig config;
    config.heads = 2;
    config.index_heads = 2;
    config.topk = 4;
    config.dtype = DType::f32;
    const Stream stream = comm.device().create_stream();
    auto message = [&](const DsaConfig& c, const std::function<void(DsaInputs&)>& change) -> std::string {
      try {
        DsaAttention attention(comm, cpu_kernels(), c);
        attention.prepare(plan);
        DsaInputs in;
        in.q = Tensor::allocate(comm.device(), DType::f32, {8, 2, 576});
        in.kv = Tensor::allocate(comm.device(), DType::f32, {8, 576});
        in.index_q = Tensor::allocate(comm.device(), DType::f32, {8, 2, 128});
        in.index_k = Tensor::allocate(comm.device(), DType::f32, {8, 128});
        in.index_w = Tensor::allocate(comm.device(), DType::f32, {8, 2});
        change(in);
        attention.forward(plan, in, stream);
      } catch (const Error& e) {
        return e.what();
      }
      return "accepted";
    };
    auto names = [](const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; };
    EXPECT_TRUE(names(message(config, [&](DsaInputs& in) { in.q = in.kv; }), "q: expected f32 [8, 2, 576]"));
    EXPECT_TRUE(names(message(config, [&](DsaInputs& in) { in.kv = in.kv.rows(0, 7); }), "kv: expected"));
    EXPECT_TRUE(names(message(config, [&](DsaInputs& in) { in.index_w = {}; }),
                      "index_w: expected f32 [8, 2] with dense rows, got no tensor"));
    EXPECT_TRUE(names(message(config, [&](DsaInputs& in) { in.sink = in.index_w; }), "sink: expected"));
    DsaConfig bad = config;
    bad.heads = 0;
    EXPECT_TRUE(names(message(bad, [](DsaInputs&) {}), "heads = 0"));
    bad = config;
    bad.topk = 0;
    EXPECT_TRUE(names(message(bad, [](DsaInputs&) {}), "topk = 0"));
    bad = config;
    bad.dim = 100;
    EXPECT_TRUE(names(message(bad, [](DsaInputs&) {}), "dim = 100"));
    bad = config;
    bad.index_dtype = DType::u8;
    EXPECT_TRUE(names(message(bad, [](DsaInputs&) {}), "index dtype u8; bf16, f32 or f8e4m3"));
    const Tensor scale = Tensor::allocate(comm.device(), DType::f32, {8});
    EXPECT_TRUE(names(message(config, [&](DsaInputs& in) { in.index_k_scale = scale; }),
                      "index_k_scale: given, but the index dtype is f32"));
    DsaConfig coded = config;
    coded.index_dtype = DType::f8e4m3;
    EXPECT_TRUE(names(message(coded, [](DsaInputs&) {}), "index_q: expected f8e4m3 [8, 2, 128]"));
    const auto as_codes = [&](DsaInputs& in) {
      in.index_q = Tensor::allocate(comm.device(), DType::f8e4m3, {8, 2, 128});
      in.index_k = Tensor::allocate(comm.device(), DType::f8e4m3, {8, 128});
    };
    EXPECT_TRUE(names(message(coded, as_codes), "index_k_scale: expected f32 [8] with dense rows, got no tensor"));
    EXPECT_TRUE(names(message(coded,
                              [&](DsaInputs& in) {
                                as_codes(in);
                                in.index_k_scale = scale.rows(0, 7);
                              }),
                      "index_k_scale: expected f32 [8] with dense rows, got f32 [7]"));
    stream.synchronize(testing::soon());
  });
}

}  // namespace
}  // namespace tandem

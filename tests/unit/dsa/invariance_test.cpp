// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>

#include "comm/tag.hpp"
#include "support/random.hpp"
#include "transports/loopback/control.hpp"
#include "unit/dsa/run.hpp"

namespace tandem {
namespace {

using testing::make_problem;
using testing::Problem;
using testing::Results;
using testing::run;
using testing::RunOptions;

Problem problem_for(std::uint64_t stream, DType dtype, std::optional<DType> index_dtype = {}) {
  auto rng = testing::test_rng(stream);
  return make_problem(rng, {37, 0, 5, 29}, 1, {}, dtype, index_dtype);
}

// Lists, out and lse of a row depend on nothing but the row.
TEST(Invariance, ForwardIsTheSameBitForBitHoweverItIsCutUp) {
  const std::pair<DType, DType> types[] = {
      {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f8e4m3}};
  for (const auto& [dtype, index_dtype] : types) {
    SCOPED_TRACE(to_string(index_dtype));
    const Problem problem = problem_for(60, dtype, index_dtype);
    RunOptions options;
    options.cluster.ranks = 1;
    const Results alone = run(problem, options);
    auto expect_same = [&](const RunOptions& o, const std::string& what) {
      const Results r = run(problem, o);
      EXPECT_EQ(r.indices, alone.indices) << what;
      EXPECT_EQ(r.length, alone.length) << what;
      EXPECT_EQ(r.out, alone.out) << what;
      EXPECT_EQ(r.lse, alone.lse) << what;
      EXPECT_EQ(r.loss, alone.loss) << what;
    };
    for (const int ranks : {2, 3, 4, 8}) {
      for (const Partition partition : {Partition::zigzag, Partition::contiguous}) {
        options = {};
        options.cluster.ranks = ranks;
        options.partition = partition;
        expect_same(options, std::to_string(ranks) + " ranks, " + to_string(partition));
      }
    }
    options = {};
    options.cluster.ranks = 3;
    for (const std::int64_t chunk : {1, 5, 1000}) {
      options.plan = {chunk, chunk, 11, 2};
      expect_same(options, "chunks of " + std::to_string(chunk));
    }
    options.cluster.transport_options = {{"delay_us", "500"}};
    for (const int queues : {0, 1, 2}) {
      options.cluster.queues = queues;
      options.cluster.transport_options["seed"] = std::to_string(testing::test_seed() + static_cast<unsigned>(queues));
      for (const char* transport : {"loopback", "stream"}) {
        options.cluster.transport = transport;
        expect_same(options, transport + (", " + std::to_string(queues)) + " queues with delays");
      }
    }
    options = {};
    options.cluster.ranks = 2;
    options.cluster.transport = "tcp";
    expect_same(options, "tcp");
  }
}

TEST(Invariance, GradientsAreTheSameFromRunToRun) {
  const Problem problem = problem_for(61, DType::f32);
  RunOptions options;
  options.cluster.ranks = 4;
  const Results first = run(problem, options);
  for (const int threads : {1, 2, 3}) {
    options.kernel_threads = threads;
    options.cluster.queues = threads - 1;
    options.cluster.transport_options = {
        {"delay_us", "400"}, {"seed", std::to_string(testing::test_seed() + static_cast<unsigned>(threads))}};
    for (const char* transport : {"loopback", "stream"}) {
      options.cluster.transport = transport;
      EXPECT_TRUE(run(problem, options) == first) << transport << ", " << threads << " threads";
    }
  }
}

// Several layers are enqueued before anything is waited for; a rank comes late.
TEST(Invariance, LayersInFlightDoNotDisturbEachOther) {
  const Problem problem = problem_for(64, DType::f32);
  for (const bool keep : {true, false}) {
    RunOptions options;
    options.cluster.ranks = 3;
    options.keep_landed = keep;
    const Results one = run(problem, options);
    options.layers = 3;
    for (const char* transport : {"loopback", "tcp", "stream", "grouped", "staged:loopback", "staged:tcp"}) {
      for (const int queues : {0, 1}) {
        options.cluster.transport = transport;
        options.cluster.queues = queues;
        options.late_rank = queues + 1;
        EXPECT_TRUE(run(problem, options) == one) << transport << ", " << queues << " queues";
      }
    }
  }
}

// One rank alone is the kernels called one after the other.
TEST(Invariance, OneRankEqualsTheUnshardedKernels) {
  auto rng = testing::test_rng(62);
  const Problem problem = make_problem(rng, {45}, 0, {}, DType::f32);
  const auto& g = problem.global;
  RunOptions options;
  options.cluster.ranks = 1;
  options.plan.block_rows = 1000;  // one block
  const Results results = run(problem, options);

  const Device device = Device::host();
  const Stream stream = device.create_stream();
  const auto kernels = cpu_kernels({1});
  auto view = [](const std::vector<float>& v, std::initializer_list<std::int64_t> shape) {
    return Tensor::from_raw(const_cast<float*>(v.data()), DType::f32, shape);
  };
  const Tensor indices = Tensor::allocate(device, DType::i32, {g.rows, g.topk}),
               length = Tensor::allocate(device, DType::i32, {g.rows});
  const Tensor nans = Tensor::allocate(device, DType::i64, {1});
  *nans.data_as<std::int64_t>() = 0;
  const Tensor out = Tensor::allocate(device, DType::f32, {g.rows, g.heads, value_dim}),
               lse = Tensor::allocate(device, DType::f32, {g.rows, g.heads});
  std::vector<float> dq(g.q.size(), -1), dkv(g.kv.size(), 0), dsink(g.sink.size(), 0);
  IndexerStep step;
  step.rows = {{0, g.rows}};
  step.keys = {{0, g.rows}};
  const IndexerInputs indexer{view(g.index_q, {g.rows, g.index_heads, index_dim}),
                              view(g.index_w, {g.rows, g.index_heads}),
                              view(g.index_k, {g.rows, index_dim}),
                              g.begin,
                              g.end,
                              g.topk,
                              true};
  kernels->indexer_topk(step, indexer, {}, {indices, length, nans}, stream);
  const AttentionInputs attention{
      view(g.q, {g.rows, g.heads, g.dim}), view(g.kv, {g.rows, g.dim}), indices, length, view(g.sink, {g.heads}),
      static_cast<float>(g.scale)};
  kernels->sparse_mla_forward(attention, {out, lse, {}}, stream);
  kernels->sparse_mla_backward({0, g.rows}, attention,
                               {view(g.dout, {g.rows, g.heads, value_dim}), out, lse,
                                view(dq, {g.rows, g.heads, g.dim}), view(dkv, {g.rows, g.dim}), view(dsink, {g.heads})},
                               stream);
  stream.synchronize(testing::soon());
  auto equal = [](const std::vector<float>& a, const Tensor& b) {
    return std::equal(a.begin(), a.end(), b.data_as<float>());
  };
  EXPECT_TRUE(std::equal(results.indices.begin(), results.indices.end(), indices.data_as<std::int32_t>()));
  EXPECT_TRUE(equal(results.out, out));
  EXPECT_TRUE(equal(results.lse, lse));
  EXPECT_EQ(results.dq, dq);
  EXPECT_EQ(results.dkv, dkv);
  EXPECT_EQ(results.dsink, dsink);
}

// Payload as the plan counts it: half of a full all-gather for one causal document in contiguous shards.
TEST(Bytes, OnlyNeededRowsMove) {
  auto rng = testing::test_rng(63);
  RunOptions options;
  options.cluster.ranks = 4;
  options.partition = Partition::contiguous;
  const Problem one = make_problem(rng, {64}, 0, {2, 2, 576, 8, false}, DType::f32);
  const std::uint64_t row = 4 * (576 + 128);
  // Counted by the transport, too: what it delivers of gathers to each rank.
  std::atomic<std::uint64_t> delivered{0};
  {
    const loopback::Gate counter = loopback::hold([&](const loopback::Delivery& d) {
      if (detail::Tag::decode(d.tag).kind == detail::OpKind::gather) delivered += d.bytes;
      return false;
    });
    EXPECT_EQ(run(one, options).gathered_bytes, row * 64 * 3 / 2);
  }
  EXPECT_EQ(delivered.load(), row * 64 * 3 / 2);
  // An e4m3 key and its scale are 132 bytes.
  const Problem coded = make_problem(rng, {64}, 0, {2, 2, 576, 8, false}, DType::bf16, DType::f8e4m3);
  EXPECT_EQ(run(coded, options).gathered_bytes, (2 * 576 + 132) * 64U * 3 / 2);
  const Problem packed = make_problem(rng, {16, 16, 7, 9, 16}, 0, {2, 2, 576, 8, false}, DType::f32);
  EXPECT_EQ(run(packed, options).gathered_bytes, 0U);
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
// The kernels through the public interface: on streams, several at a time, and what they reject.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "kernel_case.hpp"
#include "tandem/device.hpp"

namespace tandem::testing {
namespace {

struct Call {
  Case c;
  TopkLists lists;
  Tensor out, lse, head_sums, backward_sums, dq, dkv, dense_sums, loss, d_index_q, d_index_w, d_index_k;

  explicit Call(const Case& problem)
      : c(problem),
        lists(poisoned_lists(c.p.rows, c.p.topk)),
        out(poisoned(c.dtype, {c.p.rows, c.p.heads, value_dim})),
        lse(poisoned(DType::f32, {c.p.rows, c.p.heads})),
        head_sums(poisoned(DType::f32, {c.p.rows, c.p.topk})),
        backward_sums(poisoned(DType::f32, {c.p.rows, c.p.topk})),
        dq(poisoned(c.dtype, {c.p.rows, c.p.heads, c.p.dim})),
        dkv(zeros(DType::f32, {c.p.keys, c.p.dim})),
        dense_sums(poisoned(DType::f32, {c.p.rows, c.p.keys})),
        loss(poisoned(DType::f64, {c.p.rows})),
        d_index_q(poisoned(c.dtype, {c.p.rows, c.p.index_heads, index_dim})),
        d_index_w(poisoned(DType::f32, {c.p.rows, c.p.index_heads})),
        d_index_k(zeros(DType::f32, {c.p.keys, index_dim})) {}

  RowRange rows() const { return {0, c.p.rows}; }
  IndexerStep step() const { return {{rows()}, {{0, c.p.keys}}, {}, true, true}; }
  AttentionInputs attention() const { return c.attention(lists.indices, lists.length); }
  AttentionGradients gradients() const { return {c.dout, out, lse, dq, dkv, {}, backward_sums}; }
  LossSupport support() const { return {lists.indices, lists.length}; }
  IndexerLoss indexer_loss() const { return {rows(), head_sums, 1.0, 1.0, loss, d_index_q, d_index_w, d_index_k}; }

  void enqueue(KernelSet& kernels, const Stream& stream) const {
    kernels.indexer_topk(step(), c.indexer(), {}, lists, stream);
    kernels.sparse_mla_forward(attention(), {out, lse, head_sums}, stream);
    kernels.sparse_mla_backward(rows(), attention(), gradients(), stream);
    kernels.dense_head_sums(rows(), c.indexer(), attention(), dense_sums, stream);
    kernels.indexer_loss(c.indexer(), support(), indexer_loss(), stream);
  }
  std::vector<std::vector<std::uint8_t>> all_bytes() const {
    std::vector<std::vector<std::uint8_t>> bytes;
    for (const Tensor& t : {lists.indices, lists.length, out, lse, head_sums, backward_sums, dq, dkv, dense_sums, loss,
                            d_index_q, d_index_w, d_index_k}) {
      bytes.push_back(bytes_of(t));
    }
    return bytes;
  }
};

Case small_case(std::uint64_t seed) {
  auto rng = test_rng(seed);
  return make_case(rng, {.rows = 40, .keys = 70, .heads = 2, .topk = 9}, DType::bf16);
}

TEST(KernelSet, StreamsRunAtTheSameTimeAndGiveTheSameBits) {
  const Device device = Device::host();
  const auto kernels = cpu_kernels({.threads = 3});
  EXPECT_EQ(kernels->name(), "cpu");
  EXPECT_EQ(kernels->numerics_version(), cpu_kernels({.threads = 1})->numerics_version());
  const Case problem = small_case(100);
  const Call alone(problem);
  const Stream first = device.create_stream();
  alone.enqueue(*kernels, first);
  first.synchronize(Deadline::after(std::chrono::seconds(30)));
  std::vector<Call> calls;
  std::vector<Stream> streams;
  for (int i = 0; i < 3; ++i) calls.emplace_back(problem);
  for (const Call& call : calls) {
    streams.push_back(device.create_stream());
    call.enqueue(*kernels, streams.back());
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    streams[i].synchronize(Deadline::after(std::chrono::seconds(30)));
    EXPECT_EQ(calls[i].all_bytes(), alone.all_bytes());
  }
}

TEST(KernelSet, MayGoBeforeItsWorkHasRun) {
  const Device device = Device::host();
  const Stream stream = device.create_stream();
  const Call call(small_case(101));
  {
    const auto kernels = cpu_kernels({.threads = 2});
    stream.run([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    call.enqueue(*kernels, stream);
  }
  stream.synchronize(Deadline::after(std::chrono::seconds(30)));
  EXPECT_EQ(call.lists.length.data_as<std::int32_t>()[0] < 0, false);
}

/// Runs `call` and returns the message of the invalid_argument it must throw.
std::string rejection(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

class Rejects : public ::testing::Test {
 protected:
  std::string topk(const std::function<void(IndexerStep&, IndexerInputs&, TopkState&, TopkLists&)>& spoil) {
    IndexerStep step = call.step();
    IndexerInputs in = call.c.indexer();
    TopkState state;
    TopkLists lists = call.lists;
    spoil(step, in, state, lists);
    return rejection([&] { kernels->indexer_topk(step, in, state, lists, stream); });
  }
  std::string forward(const std::function<void(AttentionInputs&, AttentionOutputs&)>& spoil) {
    AttentionInputs in = call.attention();
    AttentionOutputs out{call.out, call.lse, call.head_sums};
    spoil(in, out);
    return rejection([&] { kernels->sparse_mla_forward(in, out, stream); });
  }
  std::string backward(const std::function<void(RowRange&, AttentionInputs&, AttentionGradients&)>& spoil) {
    RowRange rows = call.rows();
    AttentionInputs in = call.attention();
    AttentionGradients grads = call.gradients();
    spoil(rows, in, grads);
    return rejection([&] { kernels->sparse_mla_backward(rows, in, grads, stream); });
  }
  std::string loss(const std::function<void(IndexerInputs&, LossSupport&, IndexerLoss&)>& spoil) {
    IndexerInputs in = call.c.indexer();
    LossSupport support = call.support();
    IndexerLoss l = call.indexer_loss();
    spoil(in, support, l);
    return rejection([&] { kernels->indexer_loss(in, support, l, stream); });
  }

  Device device = Device::host();
  Stream stream = device.create_stream();
  std::shared_ptr<KernelSet> kernels = cpu_kernels({.threads = 1});
  Call call{small_case(102)};
};

using ::testing::HasSubstr;

TEST_F(Rejects, IndexerArguments) {
  EXPECT_THAT(topk([](auto&, auto& in, auto&, auto&) {
                in.index_w = zeros(DType::bf16, {40, 2});
              }),
              HasSubstr("index_w: expected f32 [40, 2], got bf16 [40, 2]"));
  EXPECT_THAT(topk([](auto&, auto& in, auto&, auto&) {
                in.index_k = zeros(DType::f32, {70, 128});
              }),
              HasSubstr("index_k: expected bf16 [*, 128], got f32 [70, 128]"));
  EXPECT_THAT(topk([](auto&, auto& in, auto&, auto&) {
                in.index_q = zeros(DType::bf16, {40, 2, 64});
              }),
              HasSubstr("index_q: expected bf16, f32 or f8e4m3 [*, *, 128], got bf16 [40, 2, 64]"));
  EXPECT_THAT(topk([](auto&, auto& in, auto&, auto&) {
                in.index_q = zeros(DType::bf16, {40, 0, 128});
              }),
              HasSubstr("index_q heads: expected at least 1, got 0"));
  EXPECT_THAT(topk([](auto&, auto& in, auto&, auto&) { in.topk = 0; }), HasSubstr("topk: expected at least 1, got 0"));
  EXPECT_THAT(topk([](auto&, auto& in, auto&, auto&) { in.key_begin = {}; }),
              HasSubstr("expected 40 entries each, got 0"));
  const std::vector<std::int64_t> beyond(40, 71);
  EXPECT_THAT(topk([&](auto&, auto& in, auto&, auto&) { in.key_end = beyond; }), HasSubstr("row 0 sees [14, 71)"));
  EXPECT_THAT(topk([](auto& step, auto&, auto&, auto&) {
                step.rows = {{0, 41}};
              }),
              HasSubstr("step.rows[0]: [0, 41) is not within [0, 40)"));
  EXPECT_THAT(topk([](auto& step, auto&, auto&, auto&) {
                step.keys = {{0, 9}, {8, 70}};
              }),
              HasSubstr("step.keys[1]: begins at 8, before the end 9"));
  EXPECT_THAT(topk([](auto& step, auto&, auto&, auto&) { step.first = false; }),
              HasSubstr("state.scores: expected f32 [40, 9], got an empty tensor"));
  EXPECT_THAT(topk([](auto&, auto&, auto&, auto& lists) {
                lists.indices = zeros(DType::i64, {40, 9});
              }),
              HasSubstr("indices: expected i32 [40, 9], got i64 [40, 9]"));
  EXPECT_THAT(topk([](auto&, auto&, auto&, auto& lists) { lists.nan_count = {}; }),
              HasSubstr("nan_count: expected i64 [1]"));
}

TEST_F(Rejects, E4m3Arguments) {
  const auto with = [&](const Tensor& q, const Tensor& k, const Tensor& scale) {
    return topk([&](auto&, auto& in, auto&, auto&) {
      in.index_q = q;
      in.index_k = k;
      in.index_k_scale = scale;
    });
  };
  const Tensor q = zeros(DType::f8e4m3, {40, 2, 128});
  const Tensor k = zeros(DType::f8e4m3, {70, 128});
  const Tensor scale = zeros(DType::f32, {70});
  EXPECT_THAT(with(q, k, {}), HasSubstr("index_k_scale: expected f32 [70], got an empty tensor"));
  EXPECT_THAT(with(q, k, zeros(DType::f32, {69})), HasSubstr("index_k_scale: expected f32 [70], got f32 [69]"));
  EXPECT_THAT(with(q, k, zeros(DType::bf16, {70})), HasSubstr("index_k_scale: expected f32 [70], got bf16 [70]"));
  EXPECT_THAT(with(q, k, zeros(DType::bf16, {70, 1})), HasSubstr("expected f32 [70, 1], got bf16 [70, 1]"));
  EXPECT_THAT(with(q, k, zeros(DType::f32, {70, 2})), HasSubstr("expected f32 [70], got f32 [70, 2]"));
  EXPECT_THAT(with(call.c.index_q, call.c.index_k, scale), HasSubstr("index_k_scale: given, but index_k is bf16"));
  EXPECT_THAT(with(call.c.index_q, k, scale), HasSubstr("index_k: expected bf16 [*, 128], got f8e4m3 [70, 128]"));
  EXPECT_THAT(with(q, call.c.index_k, scale), HasSubstr("index_k: expected f8e4m3 [*, 128], got bf16 [70, 128]"));
  EXPECT_THAT(with(zeros(DType::f8e4m3, {40, 2, 64}), k, scale),
              HasSubstr("index_q: expected f8e4m3 [*, *, 128], got f8e4m3 [40, 2, 64]"));
  EXPECT_THAT(loss([&](auto& in, auto&, auto&) {
                in.index_q = q;
                in.index_k = k;
                in.index_k_scale = scale;
              }),
              HasSubstr("d_index_q: expected f32 [40, 2, 128], got bf16 [40, 2, 128]"));
  EXPECT_THAT(forward([](auto& in, auto&) {
                in.q = zeros(DType::f8e4m3, {40, 2, 576});
              }),
              HasSubstr("q: expected bf16 or f32 "));
}

TEST_F(Rejects, AttentionArguments) {
  EXPECT_THAT(forward([](auto& in, auto&) {
                in.q = zeros(DType::bf16, {40, 2, 500});
              }),
              HasSubstr("q: expected bf16 or f32 [*, *, 576], got bf16 [40, 2, 500]"));
  EXPECT_THAT(forward([](auto& in, auto&) {
                in.q = zeros(DType::bf16, {40, 0, 576});
              }),
              HasSubstr("q heads: expected at least 1, got 0"));
  EXPECT_THAT(forward([](auto& in, auto&) {
                in.kv = zeros(DType::bf16, {70, 512});
              }),
              HasSubstr("kv: expected bf16 [*, 576], got bf16 [70, 512]"));
  EXPECT_THAT(forward([](auto& in, auto&) {
                in.indices = zeros(DType::i32, {40, 0});
              }),
              HasSubstr("indices columns (K): expected at least 1, got 0"));
  EXPECT_THAT(forward([](auto& in, auto&) { in.sink = zeros(DType::f32, {3}); }),
              HasSubstr("sink: expected f32 [2], got f32 [3]"));
  EXPECT_THAT(forward([](auto&, auto& out) { out.out = {}; }),
              HasSubstr("out: expected bf16 [40, 2, 512], got an empty tensor"));
  EXPECT_THAT(forward([](auto&, auto& out) {
                out.lse = zeros(DType::f64, {40, 2});
              }),
              HasSubstr("lse: expected f32 [40, 2]"));
  EXPECT_THAT(backward([](auto& rows, auto&, auto&) {
                rows = {-1, 3};
              }),
              HasSubstr("rows: [-1, 3) is not within [0, 40)"));
  EXPECT_THAT(backward([](auto&, auto&, auto& g) {
                g.dkv = zeros(DType::bf16, {70, 576});
              }),
              HasSubstr("dkv: expected f32 [70, 576], got bf16 [70, 576]"));
  EXPECT_THAT(backward([](auto& rows, auto&, auto&) {
                rows = {0, 39};
              }),
              HasSubstr("head_sums: expected f32 [39, 9], got f32 [40, 9]"));
  EXPECT_THAT(backward([](auto&, auto&, auto& g) { g.dsink = zeros(DType::f32, {2}); }),
              HasSubstr("dsink: given, but"));
  const Tensor narrow = zeros(DType::f32, {40, 20});
  EXPECT_THAT(
      rejection([&] { kernels->dense_head_sums(call.rows(), call.c.indexer(), call.attention(), narrow, stream); }),
      HasSubstr("head_sums: row "));
}

TEST_F(Rejects, LossArguments) {
  EXPECT_THAT(loss([](auto&, auto&, auto& l) {
                l.head_sums = zeros(DType::f32, {40, 8});
              }),
              HasSubstr("head_sums: expected f32 [40, 9], got f32 [40, 8]"));
  EXPECT_THAT(loss([](auto&, auto&, auto& l) { l.loss = zeros(DType::f32, {40}); }),
              HasSubstr("loss: expected f64 [40], got f32 [40]"));
  EXPECT_THAT(loss([](auto&, auto& support, auto&) { support.length = {}; }), HasSubstr("length: expected i32 [40]"));
  EXPECT_THAT(loss([](auto&, auto& support, auto&) { support = {}; }), HasSubstr("head_sums: expected f32 [40, 5"));
}

TEST(KernelSet, RejectsNegativeThreads) {
  EXPECT_THAT(rejection([] { cpu_kernels({.threads = -1}); }), HasSubstr("threads: expected 0 or more, got -1"));
}

}  // namespace
}  // namespace tandem::testing

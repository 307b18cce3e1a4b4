// SPDX-License-Identifier: Apache-2.0
#include "kernels_support.hpp"

namespace tandem::testing_gpu {
namespace {

using testing::bytes_of;
using testing::poisoned;
using testing::test_rng;

/// All kernels of a forward on the same inputs: the indexer in two steps, attention, both kinds of loss.
class CapturedKernels : public KernelsOnGpu {
 protected:
  static constexpr std::int64_t topk = 64;

  Case make(std::mt19937_64& rng) const {
    return testing::make_case(rng, {.rows = 50, .keys = 400, .heads = 5, .index_heads = 8, .topk = topk, .sink = true},
                              DType::bf16);
  }
  void prepare(const Case& c) {
    g_ = on_gpu(c);
    steps_ = {{{{0, 50}}, {{0, 150}, {200, 300}}, {}, true, false},
              {{{0, 50}}, {{150, 200}, {300, 400}}, {}, false, true}};
    for (const IndexerStep& step : steps_) indexers_.push_back(indexer(g_, step));
    const auto rows = c.p.rows;
    state_ = {up(poisoned(DType::f32, {rows, topk})), up(poisoned(DType::i32, {rows, topk})),
              up(poisoned(DType::i32, {rows}))};
    lists_ = {up(poisoned(DType::i32, {rows, topk})), up(poisoned(DType::i32, {rows})),
              up(testing::zeros(DType::i64, {1}))};
    out_ = {up(poisoned(DType::bf16, {rows, 5, value_dim})), up(poisoned(DType::f32, {rows, 5})),
            up(poisoned(DType::f32, {rows, topk}))};
    dense_ = up(poisoned(DType::f32, {rows, 400}));
    for (Tensor& loss : losses_) loss = up(poisoned(DType::f64, {rows}));
  }
  void enqueue() const {
    for (std::size_t i = 0; i < steps_.size(); ++i)
      kernels_->indexer_topk(steps_[i], indexers_[i], state_, lists_, stream_);
    kernels_->sparse_mla_forward(g_.attention(lists_.indices, lists_.length), out_, stream_);
    kernels_->dense_head_sums({0, 50}, indexers_[0], g_.attention({}, {}), dense_, stream_);
    IndexerLoss loss;
    loss.rows = {0, 50};
    loss.head_sums = out_.head_sums;
    loss.loss = losses_[0];
    kernels_->indexer_loss(indexers_[0], {lists_.indices, lists_.length}, loss, stream_);
    loss.head_sums = dense_;
    loss.loss = losses_[1];
    kernels_->indexer_loss(indexers_[0], {}, loss, stream_);
  }
  void set(const Case& c) const {
    const auto copy = [&](const Tensor& to, const Tensor& from) {
      stream_.copy(to.data(), from.data(), bytes_in(from));
    };
    copy(g_.q, c.q);
    copy(g_.kv, c.kv);
    copy(g_.sink, c.sink);
    copy(g_.index_q, c.index_q);
    copy(g_.index_k, c.index_k);
    copy(g_.index_w, c.index_w);
    stream_.synchronize(soon_enough());
  }
  std::vector<std::vector<std::uint8_t>> results() const {
    std::vector<std::vector<std::uint8_t>> all;
    for (const Tensor& t :
         {lists_.indices, lists_.length, out_.out, out_.lse, out_.head_sums, dense_, losses_[0], losses_[1]})
      all.push_back(bytes_of(down(t)));
    return all;
  }

  Case g_;
  std::vector<IndexerStep> steps_;
  std::vector<IndexerInputs> indexers_;
  TopkState state_;
  TopkLists lists_;
  AttentionOutputs out_;
  Tensor dense_;
  Tensor losses_[2];
};

TEST_P(CapturedKernels, ReplaysWithInputsChangedInPlaceEqualEagerCalls) {
  auto rng = test_rng(90);
  Case cases[] = {make(rng), make(rng)};
  cases[1].p.begin = cases[0].p.begin;  // the bounds are the plan's
  cases[1].p.end = cases[0].p.end;
  prepare(cases[0]);
  std::vector<std::vector<std::uint8_t>> eager[2];
  for (std::size_t i = 0; i < 2; ++i) {
    set(cases[i]);
    enqueue();
    finish();
    eager[i] = results();
  }
  EXPECT_NE(eager[0], eager[1]);
  const auto cuda = static_cast<cudaStream_t>(stream_.native());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(cuda, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  enqueue();
  ASSERT_EQ(cudaStreamEndCapture(cuda, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (std::size_t n = 0; n < 6; ++n) {
    set(cases[n % 2]);
    ASSERT_EQ(cudaGraphLaunch(executable, cuda), cudaSuccess);
    finish();
    EXPECT_EQ(results(), eager[n % 2]) << "replay " << n;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CapturedKernels, ::testing::ValuesIn(kernel_sets), name_of_set);

}  // namespace
}  // namespace tandem::testing_gpu

// SPDX-License-Identifier: Apache-2.0
#include "kernels_support.hpp"

namespace tandem::testing_gpu {
namespace {

using testing::bytes_of;
using testing::poisoned;
using testing::test_rng;

/// All kernels on the same inputs: the indexer in two steps, attention, its backward in two blocks, both kinds of loss
/// with gradients.
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
    for (std::size_t i = 0; i < 2; ++i) {
      losses_[i].loss = up(poisoned(DType::f64, {rows}));
      losses_[i].d_index_q = up(poisoned(DType::bf16, {rows, 8, index_dim}));
      losses_[i].d_index_w = up(poisoned(DType::f32, {rows, 8}));
      losses_[i].d_index_k = up(poisoned(DType::f32, {400, index_dim}));
      losses_[i].rows = {0, 50};
    }
    grads_ = {g_.dout,
              out_.out,
              out_.lse,
              up(poisoned(DType::bf16, {rows, 5, 576})),
              up(poisoned(DType::f32, {400, 576})),
              up(poisoned(DType::f32, {5})),
              up(poisoned(DType::f32, {rows, topk}))};
    losses_[0].head_sums = grads_.head_sums;
    losses_[1].head_sums = dense_;
  }
  void zero(const Tensor& t) const {
    ASSERT_EQ(cudaMemsetAsync(t.data(), 0, bytes_in(t), static_cast<cudaStream_t>(stream_.native())), cudaSuccess);
  }
  void enqueue() const {
    for (const Tensor& t : {grads_.dkv, grads_.dsink, losses_[0].d_index_k, losses_[1].d_index_k}) zero(t);
    for (std::size_t i = 0; i < steps_.size(); ++i)
      kernels_->indexer_topk(steps_[i], indexers_[i], state_, lists_, stream_);
    kernels_->sparse_mla_forward(g_.attention(lists_.indices, lists_.length), out_, stream_);
    kernels_->dense_head_sums({0, 50}, indexers_[0], g_.attention({}, {}), dense_, stream_);
    for (const RowRange rows : {RowRange{20, 50}, RowRange{0, 20}}) {
      AttentionGradients block = grads_;
      block.head_sums = grads_.head_sums.rows(rows.begin, rows.size());
      kernels_->sparse_mla_backward(rows, g_.attention(lists_.indices, lists_.length), block, stream_);
    }
    kernels_->indexer_loss(indexers_[0], {lists_.indices, lists_.length}, losses_[0], stream_);
    kernels_->indexer_loss(indexers_[0], {}, losses_[1], stream_);
  }
  void set(const Case& c) const {
    const auto copy = [&](const Tensor& to, const Tensor& from) {
      stream_.copy(to.data(), from.data(), bytes_in(from));
    };
    copy(g_.q, c.q);
    copy(g_.kv, c.kv);
    copy(g_.sink, c.sink);
    copy(g_.dout, c.dout);
    copy(g_.index_q, c.index_q);
    copy(g_.index_k, c.index_k);
    copy(g_.index_w, c.index_w);
    stream_.synchronize(soon_enough());
  }
  std::vector<std::vector<std::uint8_t>> results() const {
    std::vector<std::vector<std::uint8_t>> all;
    for (const Tensor& t :
         {lists_.indices, lists_.length, out_.out, out_.lse, out_.head_sums, dense_, grads_.dq, grads_.head_sums})
      all.push_back(bytes_of(down(t)));
    for (const IndexerLoss& loss : losses_) {
      for (const Tensor& t : {loss.loss, loss.d_index_q, loss.d_index_w}) all.push_back(bytes_of(down(t)));
    }
    return all;
  }
  /// What rows add up.
  std::vector<Tensor> sums() const {
    return {down(grads_.dkv), down(grads_.dsink), down(losses_[0].d_index_k), down(losses_[1].d_index_k)};
  }
  void expect_sums(const std::vector<Tensor>& wanted) const {
    const std::vector<Tensor> got = sums();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (kernels_->deterministic()) {
        EXPECT_EQ(bytes_of(got[i]), bytes_of(wanted[i])) << i;
      } else {
        EXPECT_LE(testing::relative_error(got[i], testing::values_of(wanted[i])), 1e-5) << i;
      }
    }
  }

  Case g_;
  std::vector<IndexerStep> steps_;
  std::vector<IndexerInputs> indexers_;
  TopkState state_;
  TopkLists lists_;
  AttentionOutputs out_;
  Tensor dense_;
  AttentionGradients grads_;
  IndexerLoss losses_[2];  ///< sparse and dense
};

TEST_P(CapturedKernels, ReplaysWithInputsChangedInPlaceEqualEagerCalls) {
  auto rng = test_rng(90);
  Case cases[] = {make(rng), make(rng)};
  cases[1].p.begin = cases[0].p.begin;  // the bounds are the plan's
  cases[1].p.end = cases[0].p.end;
  prepare(cases[0]);
  std::vector<std::vector<std::uint8_t>> eager[2];
  std::vector<Tensor> eager_sums[2];
  for (std::size_t i = 0; i < 2; ++i) {
    set(cases[i]);
    enqueue();
    finish();
    eager[i] = results();
    eager_sums[i] = sums();
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
    expect_sums(eager_sums[n % 2]);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CapturedKernels, ::testing::ValuesIn(kernel_sets), name_of_set);
INSTANTIATE_TEST_SUITE_P(DeterministicKernels, CapturedKernels, ::testing::ValuesIn(deterministic_sets), name_of_set);

}  // namespace
}  // namespace tandem::testing_gpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tandem/kernels.hpp"

namespace tandem::testing {

/// Passes every call on: a base for kernel sets that tests put something in front of.
class ForwardingKernels : public KernelSet {
 public:
  explicit ForwardingKernels(std::shared_ptr<KernelSet> inner) : inner_(std::move(inner)) {}
  std::string name() const override { return inner_->name(); }
  std::uint32_t numerics_version() const override { return inner_->numerics_version(); }
  std::uint64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  ConcurrentRows concurrent_rows(std::int64_t heads, std::int64_t index_heads) const override {
    return inner_->concurrent_rows(heads, index_heads);
  }
  void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state, const TopkLists& out,
                    const Stream& stream) override {
    inner_->indexer_topk(step, in, state, out, stream);
  }
  void select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) override {
    inner_->select_topk(in, out, stream);
  }
  void sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) override {
    inner_->sparse_mla_forward(in, out, stream);
  }
  void sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                           const Stream& stream) override {
    inner_->sparse_mla_backward(rows, in, grads, stream);
  }
  void dense_head_sums(RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in, const Tensor& head_sums,
                       const Stream& stream) override {
    inner_->dense_head_sums(rows, bounds, in, head_sums, stream);
  }
  void indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                    const Stream& stream) override {
    inner_->indexer_loss(in, support, loss, stream);
  }

 private:
  std::shared_ptr<KernelSet> inner_;
};

}  // namespace tandem::testing

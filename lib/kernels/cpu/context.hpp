// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/micro.hpp"
#include "kernels/cpu/parallel.hpp"
#include "tandem/kernels.hpp"

/// The CPU kernels as plain functions that run at once, on arguments that were validated. KernelSet calls of `cpu`
/// validate, then enqueue one of these.
namespace tandem::detail::cpu {

struct Context {
  const Micro& micro;
  ThreadPool& pool;
};

void indexer_topk(const Context& context, const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                  const TopkLists& out);
void select_topk(const Context& context, const ScoreMatrix& in, const TopkLists& out);
void sparse_mla_forward(const Context& context, const AttentionInputs& in, const AttentionOutputs& out);
void sparse_mla_backward(const Context& context, RowRange rows, const AttentionInputs& in,
                         const AttentionGradients& grads);
void dense_head_sums(const Context& context, RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in,
                     const Tensor& head_sums);
void indexer_loss(const Context& context, const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss);

}  // namespace tandem::detail::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tandem/kernels.hpp"

namespace tandem::detail {

/// Each throws invalid_argument if the arguments of the call of that name are not what KernelSet asks for. Contents of
/// tensors are not looked at: they may not be there yet.
void validate_indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                           const TopkLists& out);
void validate_select_topk(const ScoreMatrix& in, const TopkLists& out);
void validate_sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out);
void validate_sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads);
void validate_dense_head_sums(RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in,
                              const Tensor& head_sums);
void validate_indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss);

}  // namespace tandem::detail

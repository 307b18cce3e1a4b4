// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/cuda/native.hpp"
#include "tandem/kernels.hpp"

/// The kernels of cuda.generic, one family a file: each call enqueues one kernel, on arguments that were validated.
namespace tandem::detail::cuda::generic {

/// K above this does not fit the shared memory of a block.
constexpr std::int64_t most_topk = 8192;

/// A word in mapped memory that kernels set when a list is bad; the last one found stays. Bits 0 to 31 are the bad
/// entry, or the length if the top bit is set; those between are the row plus 1. 0: none.
using ListFault = unsigned long long;
constexpr ListFault fault_is_length = ListFault{1} << 63;

/// Some of a call's rows, chosen by a kernel before it. Device pointers.
struct ChosenRows {
  const std::int32_t* rows = nullptr;   ///< in any order
  const std::int32_t* count = nullptr;  ///< [1]
  const std::int32_t* flags = nullptr;  ///< [s]: 0 for rows of the call that are not among them
};

void indexer_topk(const NativeStream& stream, const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                  const TopkLists& out);
void select_topk(const NativeStream& stream, const ScoreMatrix& in, const TopkLists& out);
/// `only`, here and below: other rows are left alone. Null: there are none.
void sparse_mla_forward(const NativeStream& stream, const AttentionInputs& in, const AttentionOutputs& out,
                        ListFault* fault, const ChosenRows* only = nullptr);
/// Of the entries of `rows`, by the lse of the forward: `head_sums` is f32 [rows.size(), K].
void sparse_head_sums(const NativeStream& stream, RowRange rows, const AttentionInputs& in, const Tensor& lse,
                      const Tensor& head_sums, ListFault* fault, const ChosenRows* only = nullptr);
/// All but the head sums. `ordered`: rows add to dkv and dsink in their order.
void sparse_mla_backward(const NativeStream& stream, RowRange rows, const AttentionInputs& in,
                         const AttentionGradients& grads, ListFault* fault, const ChosenRows* only, bool ordered);
void dense_head_sums(const NativeStream& stream, RowRange rows, const Tensor& bounds, const AttentionInputs& in,
                     const Tensor& head_sums);
/// With `d_scores`, f32 [loss.rows.size(), columns of the head sums], rows add to d_index_k
/// in their order; it is scratch.
void indexer_loss(const NativeStream& stream, const IndexerInputs& in, const LossSupport& support,
                  const IndexerLoss& loss, ListFault* fault, const ChosenRows* only = nullptr,
                  const Tensor& d_scores = {});

}  // namespace tandem::detail::cuda::generic

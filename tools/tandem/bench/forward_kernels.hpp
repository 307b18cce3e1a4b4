// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "dsa/plan_tables.hpp"
#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/data.hpp"
#include "tandem/bench/query_rows.hpp"
#include "tandem/bench/row_fill.hpp"
#include "tandem/dsa.hpp"

namespace tandem::cli {

/// Keys as a gather lands them.
struct LandedKeys {
  Tensor index_k, index_k_scale, kv;
};

/// What DsaAttention::forward enqueues between its waits, in the same order and with outputs of its own: the kernels of
/// a forward step without its communication.
class ForwardKernels {
 public:
  /// `job` must outlive it.
  ForwardKernels(const ComputeJob& job, const Plan& plan, std::shared_ptr<KernelSet> kernels, const DsaInputs& inputs,
                 const RowFiller& filler);

  /// `landed` must live until this has run.
  void enqueue(const LandedKeys& landed, const Stream& stream);
  /// The sparse indexer loss over the lists, block by block: whatever `loss` has tensors for. `head_sums` f32 [s, K].
  void enqueue_loss(const LandedKeys& landed, const Tensor& head_sums, IndexerLoss loss, const Stream& stream) const;
  void poison(const Stream& stream, BenchData& data) const;

  const QueryRows& rows() const noexcept { return rows_; }
  const TopkLists& lists() const noexcept { return lists_; }  ///< by landed row
  const Tensor& global_lists() const noexcept { return global_; }
  const AttentionOutputs& outputs() const noexcept { return out_; }

 private:
  IndexerInputs indexer_inputs(const LandedKeys& landed) const;

  const ComputeJob& job_;
  const Plan plan_;
  const std::shared_ptr<KernelSet> kernels_;
  const DsaInputs inputs_;
  const QueryRows rows_;
  const TopkLists lists_;
  const TopkState state_;
  Tensor global_;
  AttentionOutputs out_;
  detail::PlanTables tables_;  ///< GPUs only
};

}  // namespace tandem::cli

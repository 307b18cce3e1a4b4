// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/data.hpp"
#include "tandem/bench/floor.hpp"
#include "tandem/bench/query_rows.hpp"
#include "tandem/bench/row_check.hpp"
#include "tandem/bench/row_fill.hpp"

namespace tandem::cli {

/// One kernel with its inputs and outputs, ready to be called.
class KernelWork {
 public:
  virtual ~KernelWork() = default;
  KernelWork() = default;
  KernelWork(const KernelWork&) = delete;
  KernelWork& operator=(const KernelWork&) = delete;

  virtual void enqueue(const Stream& stream) = 0;
  /// Overwrites the outputs with what no result looks like.
  virtual void poison(const Stream& stream, BenchData& data) = 0;
  /// Of the outputs, which are there.
  virtual RowVerdict check() = 0;
  virtual Cost cost() const = 0;
  /// Query-key pairs that it works on: scored, or selected.
  virtual std::int64_t pairs() const = 0;
  /// Bytes of the rows that it adds to gradients of keys, one for each pair; 0 if it adds none.
  virtual double added_bytes() const { return 0; }
};

/// `job`, `rows`, `filler` must outlive it.
std::unique_ptr<KernelWork> make_kernel_work(const ComputeJob& job, const QueryRows& rows, Pattern pattern,
                                             std::shared_ptr<KernelSet> kernels, const RowFiller& filler);

/// Of one call, if every landed key is read once.
Cost indexer_cost(const ComputeJob& job, const QueryRows& rows);
Cost attention_cost(const ComputeJob& job, const QueryRows& rows, std::int64_t touched_keys);
Cost attention_backward_cost(const ComputeJob& job, const QueryRows& rows, std::int64_t touched_keys);
/// Of the sparse indexer loss with its gradients.
Cost loss_cost(const ComputeJob& job, const QueryRows& rows);
/// Bytes of one fp32 row of dkv for each selected pair: what a backward that merges none of them adds.
double added_dkv_bytes(const ComputeJob& job, const QueryRows& rows);
float attention_scale(const ComputeJob& job);

/// Lists of a selection, poisoned but for the count of NaN.
TopkLists make_lists(const RowFiller& filler, std::int64_t rows, std::int64_t topk);
/// Of rows that are carried between steps.
TopkState make_state(const Device& device, const QueryRows& rows, std::int64_t topk);
/// All steps, on landed keys that are here.
void enqueue_selection(KernelSet& kernels, const QueryRows& rows, IndexerInputs in, const TopkState& state,
                       const TopkLists& lists, const Stream& stream);
void poison_tensor(const Stream& stream, BenchData& data, const Tensor& tensor);

}  // namespace tandem::cli

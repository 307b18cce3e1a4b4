// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "support/cluster.hpp"
#include "support/reference/reference.hpp"
#include "tandem/dsa.hpp"

namespace tandem::testing {

/// One batch with its inputs in global order, as the reference wants them; pad rows are NaN in every input.
struct Problem {
  std::vector<std::int64_t> cu, padded;
  DType dtype = DType::f32;
  DType index_dtype = DType::f32;  ///< of index_q and index_k
  reference::Problem global;
  std::vector<std::int32_t> lists;  ///< [rows, K] global positions, to give instead of the indexer's; usually empty
};

struct Shape {
  std::int64_t heads = 3, index_heads = 2, dim = 576, topk = 8;
  bool sink = true;
};

/// `lengths` of documents; each is followed by `pad` pad rows. The indexer's inputs are of `index_dtype` if given.
Problem make_problem(std::mt19937_64& rng, const std::vector<std::int64_t>& lengths, std::int64_t pad,
                     const Shape& shape, DType dtype, std::optional<DType> index_dtype = {});

struct RunOptions {
  ClusterOptions cluster;
  Partition partition = Partition::zigzag;
  std::vector<RowRange> keys_only = {};
  PlanOptions plan{8, 3, 7, 4};
  DType wire = DType::f32;
  bool keep_landed = true;
  IndexerLossKind loss = IndexerLossKind::sparse;
  LossPass loss_pass = LossPass::forward;
  std::function<void(const Tensor& head_sums, const Stream& stream)> target_hook = {};
  int kernel_threads = 1;
  double dloss = 0.7;
  int layers = 1;      ///< forwards enqueued one after the other before any backward; all with the same inputs
  int late_rank = -1;  ///< starts 50 ms after the others
  /// Wraps the kernels of each rank, for tests that hold them up.
  std::function<std::shared_ptr<KernelSet>(std::shared_ptr<KernelSet>, Communicator&)> wrap;
  /// Called on each rank after everything is enqueued, before it is waited for.
  std::function<void(Communicator&, const DsaAttention::Forward&, const DsaAttention::Backward&)> enqueued;
};

/// Results in global order. bf16 ones are decoded.
struct Results {
  std::vector<float> out, lse, dq, dkv, d_index_q, d_index_k, d_index_w, dsink;
  std::vector<double> loss;
  std::vector<std::int32_t> indices, length;
  std::uint64_t gathered_bytes = 0;
  bool operator==(const Results&) const = default;
};

/// Forward and backward over all ranks; a failure of the test if a rank throws.
Results run(const Problem& problem, const RunOptions& options);

/// The lists of `results` as the reference takes them.
reference::Lists lists_of(const Results& results, std::int64_t topk);

/// Errors against float64 evaluated on tandem's own sets.
struct Errors {
  double out, lse, dq, dkv, dsink, d_index_q, d_index_k, d_index_w, loss;
  double worst() const;
};
Errors compare(const Problem& problem, const Results& results, IndexerLossKind loss, double dloss);

}  // namespace tandem::testing

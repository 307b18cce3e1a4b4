// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tandem/bench/options.hpp"
#include "tandem/dsa.hpp"
#include "tandem/job.hpp"

namespace tandem::cli {

enum class ComputeOperation { indexer, topk, sparse_fwd, sparse_bwd, dsa_fwd, dsa_bwd, dsa_step };
std::string to_string(ComputeOperation operation);
/// Whether `tandem bench NAME` times kernels or the operator; empty if not.
std::optional<ComputeOperation> compute_operation(const std::string& name);

/// Whether it is one of the operator, not of a kernel.
constexpr bool is_step(ComputeOperation operation) { return operation >= ComputeOperation::dsa_fwd; }
/// For messages: what an option is for.
constexpr const char* kernel_operations = "indexer, topk, sparse-fwd or sparse-bwd";
constexpr const char* step_operations = "dsa-fwd, dsa-bwd or dsa-step";
constexpr const char* compute_operations = "indexer, topk, sparse-fwd, sparse-bwd, dsa-fwd, dsa-bwd or dsa-step";

/// Of the scores (indexer, topk) or of the lists (sparse-fwd, sparse-bwd).
enum class Pattern {
  random,     ///< each key as likely as any other
  text,       ///< some four of five selected keys are among the last text_window before the query
  ascending,  ///< the later a key, the higher its score: the worst for a selection that goes through them in order
  equal,      ///< all scores are the same
};
std::string to_string(Pattern pattern);
constexpr std::int64_t text_window = 8192;
constexpr double text_share = 0.8;

/// Queries of a benchmark of kernels.
struct QueryChoice {
  std::int64_t queries = 0;  ///< so many that all see all keys, or
  int share = 0;             ///< those of rank 0 of so many, causal, zigzag
};

enum class Schedule {
  overlap,   ///< the operator, as it is
  blocking,  ///< first the whole gather, then its kernels, then the whole reduction
};
std::string to_string(Schedule schedule);

/// What `tandem bench` of kernels or of the operator is asked to do, checked and complete: the same on every rank.
struct ComputeJob {
  BenchJob common;
  ComputeOperation operation = ComputeOperation::indexer;
  std::string kernels = "cpu";
  std::string model = "tiny";
  ModelShape shape;
  DType dtype = DType::bf16;
  DType index_dtype = DType::bf16;
  std::vector<std::int64_t> seq_lens;
  std::uint64_t seed = 1;
  // Kernels.
  std::vector<QueryChoice> queries;
  std::vector<Pattern> patterns;
  // The operator.
  Partition partition = Partition::zigzag;
  int emulated_ranks = 0;  ///< see DsaJob
  std::vector<Schedule> schedules;
  IndexerLossKind loss = IndexerLossKind::none;
  bool deterministic = false;  ///< of the kernels

  bool has_forward() const { return operation != ComputeOperation::dsa_bwd; }   ///< of a step
  bool has_backward() const { return operation != ComputeOperation::dsa_fwd; }  ///< of a step
  bool has_loss() const { return loss != IndexerLossKind::none; }
  /// Of the operator.
  DsaConfig config() const;

  /// The same step for `tandem dsa`: layout, plan options and inputs.
  DsaJob step(std::int64_t seq_len) const;
};

/// Throws UsageError. Tries whether the output file can be written.
ComputeJob make_compute_job(ComputeOperation operation, const BenchArguments& arguments,
                            const std::optional<LaunchedRank>& launched);

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tandem/device.hpp"
#include "tandem/dsa.hpp"
#include "tandem/layout.hpp"
#include "tandem/plan.hpp"
#include "tandem/tensor.hpp"

namespace tandem::cli {

struct ModelShape {
  std::int64_t heads = 4;
  std::int64_t index_heads = 2;
  std::int64_t dim = 576;
  std::int64_t topk = 64;
};

/// What may be said of a model's shape beside its name; empty means not given.
struct ShapeArguments {
  std::optional<std::string> topk, heads, index_heads;
};
/// Of "tiny", "deepseek-v3.2" or "glm-5". Throws UsageError.
ModelShape choose_shape(const std::string& model, const ShapeArguments& arguments);

/// Throws UsageError if there is no such device.
void expect_device(DeviceKind device);

/// The options of `tandem dsa` as they were typed; empty means not given.
struct DsaArguments {
  std::optional<std::string> ranks, transport, device, kernels, rendezvous_timeout, timeout, model, seq_len, docs,
      pad_to, layout, topk, heads, index_heads, chunk_tokens, dtype, index_dtype, wire, loss_pass, trace, seed;
  std::vector<std::string> input;
  bool deterministic = false;
  bool check = false;
  bool memory = false;
  bool json = false;
};

/// What `tandem dsa` is asked to do, checked and complete: the same on every rank.
struct DsaJob {
  int ranks = 4;
  std::string transport = "tcp";  ///< "": what the communicator chooses
  DeviceKind device = DeviceKind::host;
  std::string kernels = "cpu";  ///< the kernel set's name, or "cuda": the best for the GPU
  std::chrono::milliseconds rendezvous_timeout{10000};
  std::chrono::milliseconds timeout{60000};
  std::string model = "tiny";
  ModelShape shape;
  std::vector<std::int64_t> lengths;  ///< real tokens of each document
  std::optional<std::int64_t> pad_to;
  std::vector<std::string> texts;  ///< bytes of each document with --input, else empty
  Partition partition = Partition::zigzag;
  /// Instead of each document's shards, its rows of one rank of so many: see emulated_layout. 0: none.
  int emulated_ranks = 0;
  std::int64_t chunk_tokens = 0;
  DType dtype = DType::f32;
  std::optional<DType> index_dtype;  ///< of index_q and index_k; empty means dtype
  DType wire = DType::f32;
  LossPass loss_pass = LossPass::backward;
  std::uint64_t seed = 1;
  std::string trace;  ///< path, or ""
  bool deterministic = false;
  bool check = false;
  bool memory = false;
  bool json = false;

  DType indexer_dtype() const { return index_dtype.value_or(dtype); }
  /// Of these documents over `over_ranks` ranks.
  SequenceLayout layout(int over_ranks) const;
  /// `most`: what the kernels like.
  PlanOptions plan_options(int over_ranks, const PlanOptions& most) const;
};

/// A layout over `ranks` ranks in which each has the queries, and gets the rows, of one rank of `emulated`: as many
/// documents of `length` tokens as ranks; of document r rank r holds the shard of rank r of `emulated`, and the others
/// hold the rest of it as keys alone. `emulated` is at least `ranks`.
SequenceLayout emulated_layout(std::int64_t length, int ranks, int emulated, Partition partition);

/// Where ranks come from: a launcher's RANK and WORLD_SIZE, if it set TANDEM_STORE or MASTER_ADDR beside them.
struct LaunchedRank {
  int rank = 0;
  int size = 1;
};
/// Throws Error if only part of it is set.
std::optional<LaunchedRank> launched_rank();

/// The GPU of a rank; ranks share GPUs where they are more. Throws unsupported if there is none.
Device device_of(const DsaJob& job, int rank);

/// Throws UsageError. Reads the --input files; tries whether the --trace file can be written.
DsaJob make_job(const DsaArguments& arguments, const std::optional<LaunchedRank>& launched);

}  // namespace tandem::cli

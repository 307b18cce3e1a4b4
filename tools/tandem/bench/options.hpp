// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tandem/device.hpp"
#include "tandem/job.hpp"

namespace tandem::cli {

/// The options of `tandem bench` as they were typed; empty means not given.
struct BenchArguments {
  std::string operation;
  std::optional<std::string> ranks, transport, device, min_bytes, max_bytes, step_factor, iterations, warmup, check,
      graph_launches, chunk_tokens, versus, beside, slow_link, output_file, timeout;
  // Of kernels and of the operator alone.
  std::optional<std::string> model, seq_len, queries, share, topk, heads, index_heads, index_dtype, kernels, pattern,
      layout, schedule, loss, emulate_ranks;
  std::vector<std::string> transport_options;  ///< KEY=VALUE
  bool deterministic = false;
  bool json = false;
  bool csv = false;
};

enum class BenchOperation { gather, reduce, exchange };

/// What `tandem bench` is asked to do, checked and complete: the same on every rank. Of a benchmark of kernels or of
/// the operator this is the part that it shares with those of communication: neither `operation`, `sizes` nor what
/// compares.
struct BenchJob {
  BenchOperation operation = BenchOperation::gather;
  int ranks = 2;
  std::string transport;
  bool transport_chosen = false;  ///< by the caller
  DeviceKind device = DeviceKind::host;
  std::vector<std::uint64_t> sizes;  ///< bytes of all ranks together, ascending
  int iterations = 20;
  int warmup = 5;
  bool check = true;
  int graph_launches = 0;         ///< 0: no graphs; else `iterations` operations are captured and launched so often
  std::int64_t chunk_tokens = 0;  ///< 0: an eighth of a shard, at most 1024
  bool versus_nccl = false;
  int gemms = 0;  ///< GEMMs of the sequence beside the operation; 0: none
  std::map<std::string, std::string> transport_options;
  int slow_link = 1;
  std::string output_file;  ///< gets the JSON as well; or ""
  std::chrono::milliseconds timeout{60000};
  bool json = false;
  bool csv = false;
};

std::string to_string(BenchOperation operation);

/// "4K", "1.5M", "2G" or plain bytes. Throws UsageError.
std::uint64_t parse_bytes(std::string_view option, std::string_view text);

/// Of what all benchmarks share: ranks, device, transport, iterations, output. Throws UsageError. Tries whether the
/// output file can be written.
void choose_common(const BenchArguments& arguments, const std::optional<LaunchedRank>& launched, BenchJob& job);

/// Throws UsageError if one of the options is given. `operations`: what they are for.
struct NamedOption {
  const char* name;
  bool given;
};
void expect_none(std::initializer_list<NamedOption> options, const char* operations);

/// Of a benchmark of communication. Throws UsageError.
BenchJob make_bench_job(const BenchArguments& arguments, const std::optional<LaunchedRank>& launched);

}  // namespace tandem::cli

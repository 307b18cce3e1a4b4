// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job.hpp"

namespace tandem::cli {

/// The options of `tandem bench` as they were typed; empty means not given.
struct BenchArguments {
  std::string operation;
  std::optional<std::string> ranks, transport, device, min_bytes, max_bytes, step_factor, iterations, warmup, check,
      chunk_tokens, timeout;
  bool json = false;
  bool csv = false;
};

enum class BenchOperation { gather, reduce, exchange };

/// What `tandem bench` is asked to do, checked and complete: the same on every rank.
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
  std::int64_t chunk_tokens = 0;  ///< 0: an eighth of a shard, at most 1024
  std::chrono::milliseconds timeout{60000};
  bool json = false;
  bool csv = false;
};

std::string to_string(BenchOperation operation);

/// "4K", "1.5M", "2G" or plain bytes. Throws UsageError.
std::uint64_t parse_bytes(std::string_view option, std::string_view text);

/// Throws UsageError.
BenchJob make_bench_job(const BenchArguments& arguments, const std::optional<LaunchedRank>& launched);

}  // namespace tandem::cli

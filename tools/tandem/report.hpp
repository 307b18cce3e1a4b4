// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "check.hpp"
#include "job.hpp"
#include "tandem/dsa.hpp"

namespace tandem::cli {

/// What one rank knows of its run. Trivially copyable: it travels as it is.
struct RankSummary {
  std::int64_t tokens = 0;         ///< local rows, pads included
  std::uint64_t needed_bytes = 0;  ///< of rows that its queries see, wherever they are
  std::uint64_t gathered_bytes = 0;
  std::uint64_t reduced_bytes = 0;  ///< received in backward
  double transfer_us = 0;
  double exposed_us = 0;
  double compute_us = 0;
  std::int64_t nan_scores = 0;
  DsaMemory memory;
  char kernels[32] = {};  ///< name of the kernel set
  char paths[64] = {};    ///< transports that moved bytes, each followed by a comma
};

/// The result of `tandem dsa`.
struct Report {
  explicit Report(const DsaJob& of) : job(of), layout(of.layout(of.ranks)) {}
  const DsaJob& job;
  SequenceLayout layout;
  std::vector<RankSummary> ranks;
  std::optional<CheckResult> check;

  /// What was asked for, or what moved bytes if that was left open.
  std::string transport() const;
  /// Name of the kernel set: what ran, not what was asked for.
  std::string kernels() const { return ranks.empty() ? job.kernels : ranks.front().kernels; }
  /// Without --check: that it ran.
  bool ok() const { return !check || check->ok(); }
  /// Bytes gathered over those of a full all-gather.
  double moved_fraction() const;
  std::vector<std::string> paths() const;
  nlohmann::ordered_json to_json() const;
  /// For people.
  std::string to_text() const;
};

/// Bytes of a row that a gather moves: an indexer key and a KV latent.
std::uint64_t gathered_row_bytes(const DsaJob& job);

}  // namespace tandem::cli

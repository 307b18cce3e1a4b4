// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/figures.hpp"
#include "tandem/bench/floor.hpp"
#include "tandem/bench/row_check.hpp"

namespace tandem::cli {

/// What only a step of the operator has. Times are medians of the slowest rank's.
struct StepFigures {
  Schedule schedule = Schedule::overlap;
  double compute_us = 0;                       ///< its kernels alone, on rows that have landed
  double communication_us = 0;                 ///< its gather alone and its reduction alone, together
  std::optional<double> gather_us, reduce_us;  ///< empty if it has none
  double exposed_us = 0;  ///< the step beyond its kernels alone: the median of the differences, turn by turn
  std::int64_t received_rows = 0;
  double landed_bytes = 0;    ///< of all rows that it needs
  double received_bytes = 0;  ///< of those of other ranks, and of their contributions to gradients
  /// The part of the communication that compute hid; empty where there is none.
  std::optional<double> hidden() const;
};

struct ComputeRow {
  std::int64_t keys = 0;  ///< of a step, the tokens of all ranks together
  std::int64_t queries = 0;
  int share = 0;
  Pattern pattern = Pattern::random;
  std::int64_t pairs = 0;
  Cost cost;
  double added_bytes = 0;  ///< of rows added to gradients of keys, one for each pair; 0 without a backward
  std::optional<double> floor_us;
  Summary us;
  std::uint64_t scratch = 0;
  bool checked = false;
  RowVerdict verdict;
  std::uint64_t late = 0;
  std::optional<StepFigures> step;

  double teraflops() const { return us.median > 0 ? cost.flops / us.median / 1e6 : 0; }
  double added_gigabytes() const { return us.median > 0 ? added_bytes / us.median / 1e3 : 0; }
  double gigabytes() const { return us.median > 0 ? cost.bytes / us.median / 1e3 : 0; }
  std::optional<double> of_floor() const;
};

struct ComputeHeader {
  std::vector<std::string> command_line;
  std::string device, route, kernels, timing;
};

/// What rank 0 prints of kernels and steps. Text is returned; "" where the format has nothing to say yet.
class ComputeReport {
 public:
  ComputeReport(const ComputeJob& job, ComputeHeader header) : job_(job), header_(std::move(header)) {}

  std::string begin() const;
  std::string add(const ComputeRow& row);
  std::string end() const;
  nlohmann::ordered_json as_json() const;
  std::uint64_t wrong() const noexcept { return wrong_; }

 private:
  bool adds() const { return job_.operation == ComputeOperation::sparse_bwd; }
  bool steps() const { return is_step(job_.operation); }
  std::string kernel_line(const ComputeRow& row) const;
  std::string step_line(const ComputeRow& row) const;
  std::string csv_line(const ComputeRow& row) const;

  const ComputeJob& job_;
  const ComputeHeader header_;
  std::vector<ComputeRow> rows_;
  std::uint64_t wrong_ = 0;
};

}  // namespace tandem::cli

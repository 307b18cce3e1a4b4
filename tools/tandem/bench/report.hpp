// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tandem/bench/figures.hpp"
#include "tandem/bench/options.hpp"
#include "tandem/bench/run.hpp"

namespace tandem::cli {

/// What is known before the first row.
struct BenchHeader {
  std::vector<std::string> command_line;
  std::string device;
  std::string route;  ///< of rank 0 to rank 1, or ""
  BenchFacts facts;
};

/// What rank 0 prints: the columns and footers of nccl-tests, and what this benchmark adds to them. Text is returned,
/// not written; "" where the format has nothing to say yet.
class BenchReport {
 public:
  BenchReport(const BenchJob& job, BenchHeader header);

  std::string begin() const;
  std::string add(const std::vector<BenchRow>& rows);
  std::string end() const;
  nlohmann::ordered_json as_json() const;
  std::uint64_t wrong() const noexcept { return wrong_; }

 private:
  std::string table_row(const BenchRow& row, double ratio) const;
  std::string csv_row(const BenchRow& row, double ratio) const;

  const BenchJob& job_;
  const BenchHeader header_;
  std::vector<std::vector<BenchRow>> sizes_;
  std::uint64_t wrong_ = 0;
};

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tandem/store.hpp"

namespace tandem::cli {

/// What the ranks of a benchmark tell each other beside the operations under test, through the job's store. Every call
/// is collective, in the same order on all ranks, and blocks up to the time limit; it throws what the store throws.
class BenchRanks {
 public:
  /// `store` may be null if `size` is 1.
  BenchRanks(std::shared_ptr<Store> store, int rank, int size, std::chrono::milliseconds limit);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// By rank, what each of them gave.
  std::vector<std::string> all(const std::string& mine);
  std::string from_first(const std::string& of_rank_0);
  /// Element by element the largest of all ranks'. All give the same number of them.
  std::vector<double> largest(const std::vector<double>& mine);
  std::uint64_t sum(std::uint64_t mine);

 private:
  std::string key(std::uint64_t round, int rank) const;

  const std::shared_ptr<Store> store_;
  const int rank_, size_;
  const std::chrono::milliseconds limit_;
  std::uint64_t round_ = 0;
};

}  // namespace tandem::cli

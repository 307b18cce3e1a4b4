// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tandem/error.hpp"

namespace tandem::cli {

BenchRanks::BenchRanks(std::shared_ptr<Store> store, int rank, int size, std::chrono::milliseconds limit)
    : store_(store ? prefix_store(std::move(store), "bench/") : nullptr), rank_(rank), size_(size), limit_(limit) {}

std::string BenchRanks::key(std::uint64_t round, int rank) const { return fmt::format("{}/{}", round, rank); }

std::vector<std::string> BenchRanks::all(const std::string& mine) {
  if (size_ == 1) return {mine};
  const Deadline deadline = Deadline::after(limit_);
  const std::uint64_t round = round_++;
  store_->set(key(round, rank_), mine, deadline);
  std::vector<std::string> values;
  for (int r = 0; r < size_; ++r) values.push_back(r == rank_ ? mine : store_->get(key(round, r), deadline));
  // Whoever has given its part of this round has read all of the one before.
  if (round > 0) store_->erase(key(round - 1, rank_), deadline);
  return values;
}

std::string BenchRanks::from_first(const std::string& of_rank_0) { return all(rank_ == 0 ? of_rank_0 : "").front(); }

std::vector<double> BenchRanks::largest(const std::vector<double>& mine) {
  std::vector<double> out = mine;
  const std::size_t bytes = mine.size() * sizeof(double);
  for (const std::string& text : all(std::string(reinterpret_cast<const char*>(mine.data()), bytes))) {
    if (text.size() != bytes) throw Error(ErrorCode::internal, "ranks disagree about what they have measured", rank_);
    std::vector<double> values(mine.size());
    std::memcpy(values.data(), text.data(), bytes);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::max(out[i], values[i]);
  }
  return out;
}

std::uint64_t BenchRanks::sum(std::uint64_t mine) {
  std::uint64_t total = 0;
  for (const std::string& text : all(std::to_string(mine))) total += std::stoull(text);
  return total;
}

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tandem/store.hpp"

namespace tandem::detail {

/// What the ranks of a group do together through their store, without the transport: exchange blobs, agree, meet. Every
/// call is collective, blocks up to its deadline, logs "waiting for ranks 3, 5 (12 s)" while it lasts, and on timeout
/// names the ranks that did not come. Names must be used once. O(ranks) messages in total: rank 0 reads everybody and
/// answers.
class Meeting {
 public:
  Meeting(std::shared_ptr<Store> store, int rank, int size) : store_(std::move(store)), rank_(rank), size_(size) {}

  /// Everybody's blob, by rank.
  std::vector<std::string> collect(const std::string& name, const std::string& mine, Deadline deadline);
  /// Rank 0's blob.
  std::string broadcast(const std::string& name, const std::string& mine, Deadline deadline);
  /// Rank 0's blob, without waiting for the other ranks.
  std::string hear_rank_0(const std::string& name, const std::string& mine, Deadline deadline);
  /// Returns when all ranks are here.
  void barrier(const std::string& name, Deadline deadline);

 private:
  std::string get(const std::string& key, const std::string& name, Deadline deadline);
  std::vector<int> missing(const std::string& name);
  std::string arrival_key(const std::string& name, int rank) const;
  /// Forgets the keys of the meeting before last: everyone who came to this one has finished with it.
  void retire(std::vector<std::string> keys);

  std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  std::vector<std::string> last_keys_;
};

}  // namespace tandem::detail

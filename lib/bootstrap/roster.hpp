// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem::detail {

/// Which ranks of a job have come and gone. A rank joins once: what others keep about it ends with it. Not thread-safe.
class Roster {
 public:
  enum class State { absent, here, left, lost };

  explicit Roster(int size) : states_(static_cast<std::size_t>(size), State::absent) {}

  int size() const noexcept { return static_cast<int>(states_.size()); }
  State state(int rank) const { return states_.at(static_cast<std::size_t>(rank)); }
  /// Why `rank` may not join, or nothing after it has.
  std::optional<std::string> join(int rank);
  /// False if the rank was not here.
  bool leave(int rank) { return go(rank, State::left); }
  bool lose(int rank) { return go(rank, State::lost); }
  /// The job does without a rank that never came: it is lost, and `why` is what it hears if it comes after all. False
  /// if the rank was not absent.
  bool give_up(int rank, std::string why);
  std::vector<int> ranks_in(State state) const;

 private:
  bool go(int rank, State to);

  std::vector<State> states_;
  std::map<int, std::string> given_up_;  // why, by rank
};

}  // namespace tandem::detail

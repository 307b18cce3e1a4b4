// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/roster.hpp"

#include <fmt/format.h>

#include <utility>

namespace tandem::detail {

std::optional<std::string> Roster::join(int rank) {
  if (rank < 0 || rank >= size()) return fmt::format("rank {} is out of range: the job has {} ranks", rank, size());
  State& state = states_[static_cast<std::size_t>(rank)];
  switch (state) {
    case State::absent:
      state = State::here;
      return std::nullopt;
    case State::here:
      return fmt::format("rank {} is taken: another process or thread joined the job with that number", rank);
    case State::left:
      return fmt::format("rank {} has already left the job", rank);
    case State::lost:
      if (const auto found = given_up_.find(rank); found != given_up_.end()) {
        return fmt::format("rank {} comes too late, the job has failed: {}", rank, found->second);
      }
      return fmt::format("rank {} was lost and may not join the job again", rank);
  }
  return fmt::format("rank {} is in an unknown state", rank);
}

bool Roster::give_up(int rank, std::string why) {
  State& state = states_.at(static_cast<std::size_t>(rank));
  if (state != State::absent) return false;
  state = State::lost;
  given_up_.emplace(rank, std::move(why));
  return true;
}

bool Roster::go(int rank, State to) {
  State& state = states_.at(static_cast<std::size_t>(rank));
  if (state != State::here) return false;
  state = to;
  return true;
}

std::vector<int> Roster::ranks_in(State state) const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (states_[static_cast<std::size_t>(r)] == state) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace tandem::detail

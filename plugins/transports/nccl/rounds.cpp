// SPDX-License-Identifier: Apache-2.0
#include "transports/nccl/rounds.hpp"

#include <algorithm>
#include <tuple>

namespace tandem::nccl {

std::vector<Round> in_rounds(std::vector<tandem_transfer> transfers) {
  // The two ends of a pair may have posted in different orders; tags are what they agree on.
  std::stable_sort(transfers.begin(), transfers.end(), [](const tandem_transfer& a, const tandem_transfer& b) {
    return std::tie(a.round, a.tag) < std::tie(b.round, b.tag);
  });
  std::vector<Round> rounds;
  for (const tandem_transfer& t : transfers) {
    if (rounds.empty() || rounds.back().number != t.round) rounds.push_back({t.round, {}, {}});
    if (t.bytes > 0) rounds.back().transfers.push_back(t);
    if (t.direction == TANDEM_RECEIVE) rounds.back().arrivals.emplace_back(t.peer, t.flag);
  }
  for (Round& round : rounds) {
    std::sort(round.arrivals.begin(), round.arrivals.end());
    round.arrivals.erase(std::unique(round.arrivals.begin(), round.arrivals.end()), round.arrivals.end());
  }
  return rounds;
}

}  // namespace tandem::nccl

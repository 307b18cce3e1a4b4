// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tandem/plugin/transport.h"

namespace tandem::nccl {

/// What NCCL starts as one group.
struct Round {
  std::uint64_t number = 0;
  /// Those that move something. NCCL matches what two ranks exchange by order alone: both have the same one here.
  std::vector<tandem_transfer> transfers;
  /// Peer and flag of everything that has arrived when the round is done, each once.
  std::vector<std::pair<int, std::uint32_t>> arrivals;
};

/// In the order in which rounds are started. `transfers` are in the order in which they were posted.
std::vector<Round> in_rounds(std::vector<tandem_transfer> transfers);

}  // namespace tandem::nccl

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tandem/plan.hpp"

namespace tandem::detail {

/// Where a rank's own rows land on itself.
class OwnRows {
 public:
  explicit OwnRows(const Plan& plan) {
    for (const ChunkTransfer& t : plan.arrivals()) {
      if (t.step == 0) runs_.insert(runs_.end(), t.runs.begin(), t.runs.end());
    }
    std::sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.owner_row < b.owner_row; });
  }
  /// Of a local row that is no pad. The rows of a run of a departure lie together from there on: between two of them
  /// there is none that this rank needs, for its next row is of the same document then, and the receiver, who sees
  /// that, would need it, too.
  std::int64_t landed_row(std::int64_t owner_row) const {
    const auto behind = std::upper_bound(runs_.begin(), runs_.end(), owner_row,
                                         [](std::int64_t row, const Run& run) { return row < run.owner_row; });
    const Run& run = *std::prev(behind);
    return run.landed_row + (owner_row - run.owner_row);
  }

 private:
  std::vector<Run> runs_;
};

}  // namespace tandem::detail

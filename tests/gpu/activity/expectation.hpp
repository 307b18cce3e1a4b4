// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpu/activity/recorder.hpp"
#include "tandem/communicator.hpp"
#include "tandem/plan.hpp"

namespace tandem::testing_activity {

/// What one rank's part of an operation may make its GPU do, from the plan alone. Words of streams and events are no
/// activities of CUPTI's.
struct Expectation {
  struct Push {
    std::uint64_t bytes = 0;
    bool between_gpus = false;
    auto operator<=>(const Push&) const = default;
  };
  std::size_t kernels = 0;
  std::vector<Push> pushes;

  /// "" if `seen` is this and nothing else.
  std::string difference(const std::vector<Activity>& seen) const;
};

/// A gather: one push for each run and peer, one for each packed chunk and peer. Kernels pack and place what the plan
/// marks, and one, for all fields, places own rows that are not `in_place`. With as many GPUs, rank r is on GPU r mod
/// `gpus`.
Expectation of_gather(const Plan& plan, const std::vector<FieldSpec>& fields, bool in_place, int gpus);

/// A reduction: one push for each field of each chunk that others own. One kernel sums each own chunk of each field,
/// and one packs contributions that are rounded or do not lie in one piece.
Expectation of_reduction(const Plan& plan, const std::vector<FieldSpec>& fields, int gpus);

/// Where own rows land if that is one piece, so that a dense source can be written there; else -1.
std::int64_t own_rows_begin(const Plan& plan);

}  // namespace tandem::testing_activity

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/p2p/worker.hpp"

namespace tandem::testing_activity {

/// One rank's part. Returns the exit status of the process:
///   recorder    the recorder sees a kernel, a copy and a set, and an expectation misses none of them
///   gathers     random plans, sources elsewhere: chunks in runs, and packed ones if max_runs says so
///   in_place    sources where they land, nothing packed: no kernel at all
///   reductions  random plans, wire dtypes f32 and bf16
int run_scenario(const testing_p2p::Arguments& arguments);

}  // namespace tandem::testing_activity

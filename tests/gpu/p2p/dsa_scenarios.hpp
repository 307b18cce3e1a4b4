// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/p2p/worker.hpp"

namespace tandem::testing_p2p {

// The DSA pipeline on GPUs, one rank a process. Scenarios throw if anything is wrong.

/// Forward and backward: alone against the float64 reference, then with the others against alone. Numbers: seed, bf16
/// (0), loss (0 none, 1 sparse, 2 dense), keep (1), wire16 (0), lists (0; 1: given by the caller).
void dsa(const Arguments& arguments);
/// Captured once, replayed with inputs that change in place, against eager.
void dsa_captured(const Arguments& arguments);

}  // namespace tandem::testing_p2p

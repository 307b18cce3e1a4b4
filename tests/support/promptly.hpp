// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace tandem::testing {

/// How long after its deadline a call may still take to say that it passed: the second that is promised, and what a
/// busy machine may hold a process up. What these tests tell it from are waits of 10 s and more.
constexpr std::chrono::milliseconds promptly{1000 + 4000};

}  // namespace tandem::testing

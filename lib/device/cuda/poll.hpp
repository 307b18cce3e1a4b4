// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "tandem/deadline.hpp"

namespace tandem::detail::cuda {

/// Asks `done` until it says yes, or the deadline has passed: false. CUDA's own waits know no deadline. For a moment it
/// asks without a pause, as most waits are short; then ever less often, at last 5000 times a second.
template <class Done>
bool poll_until(Deadline deadline, const Done& done) {
  using std::chrono::microseconds;
  const auto busy_until = Deadline::Clock::now() + microseconds(50);
  Deadline::Clock::duration pause = microseconds(5);
  while (!done()) {
    const auto now = Deadline::Clock::now();
    if (now >= deadline.time()) return false;
    if (now < busy_until) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::min(pause, deadline.time() - now));
    pause = std::min<Deadline::Clock::duration>(pause + pause / 4, microseconds(200));
  }
  return true;
}

}  // namespace tandem::detail::cuda

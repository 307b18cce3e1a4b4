// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "unit/bootstrap/worlds.hpp"

namespace tandem::testing {

/// Of this process.
inline std::size_t threads() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

/// A joined thread may still be listed for a moment.
inline void expect_threads(std::size_t n) {
  const Deadline limit = soon();
  while (threads() != n && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(threads(), n);
}

}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace tandem::testing {

/// The seed of this process: TANDEM_TEST_SEED, or a fresh one. Printed once, so that a failure can be run again.
inline std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("TANDEM_TEST_SEED");
    const std::uint64_t s = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("TANDEM_TEST_SEED=%llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return seed;
}

/// A generator for one use of a test; different `stream` numbers give independent ones.
inline std::mt19937_64 test_rng(std::uint64_t stream = 0) {
  std::seed_seq seq{test_seed(), stream};
  return std::mt19937_64(seq);
}

}  // namespace tandem::testing

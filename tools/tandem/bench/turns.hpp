// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tandem/bench/options.hpp"
#include "tandem/bench/ranks.hpp"
#include "tandem/bench/timer.hpp"

namespace tandem::cli {

/// One of several ways to do something, to be timed.
struct Turn {
  BenchTimer::Enqueue enqueue;
  /// Before each `enqueue`, while nothing runs: frees what the last one left. May be empty.
  std::function<void()> before;
};

struct TurnTimes {
  std::vector<double> us;  ///< of the slowest rank, iteration by iteration
  std::uint64_t late = 0;  ///< measurements in which a GPU had to wait for its host, of all ranks
};

/// Times all of them by turns, iteration by iteration, after calls that are not timed. Collective.
std::vector<TurnTimes> time_by_turns(const BenchJob& job, std::span<const Turn> turns, BenchTimer& timer,
                                     BenchRanks& ranks);
/// Runs one of them.
void run_turn(const BenchJob& job, const Turn& turn, const Stream& stream);

}  // namespace tandem::cli

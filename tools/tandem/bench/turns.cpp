// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/turns.hpp"

namespace tandem::cli {
namespace {

/// Landing slots alternate, and clients of a slot find its memory at their first call.
constexpr int first_calls = Prepared::slots;

}  // namespace

void run_turn(const BenchJob& job, const Turn& turn, const Stream& stream) {
  if (turn.before) turn.before();
  turn.enqueue(stream);
  stream.synchronize(Deadline::after(job.timeout));
}

std::vector<TurnTimes> time_by_turns(const BenchJob& job, std::span<const Turn> turns, BenchTimer& timer,
                                     BenchRanks& ranks) {
  for (const Turn& turn : turns) {
    for (int i = 0; i < first_calls; ++i) run_turn(job, turn, timer.stream());
  }
  timer.warm();
  std::vector<TurnTimes> times(turns.size());
  for (int i = -job.warmup; i < job.iterations; ++i) {
    for (std::size_t t = 0; t < turns.size(); ++t) {
      if (turns[t].before) turns[t].before();
      const double us = timer.time(turns[t].enqueue);
      const auto late = static_cast<std::uint64_t>(timer.take_late());
      if (i < 0) continue;
      times[t].us.push_back(us);
      times[t].late += late;
    }
  }
  for (TurnTimes& t : times) {
    t.us = ranks.largest(t.us);
    t.late = ranks.sum(t.late);
  }
  return times;
}

}  // namespace tandem::cli

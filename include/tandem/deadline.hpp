// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace tandem {

/// A point of the steady clock up to which a call may block. A value.
///
///     comm.barrier(Deadline::after(std::chrono::seconds(10)));
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> d) {
    // Capped at ten years: the sum must not overflow for a caller's duration::max().
    constexpr std::chrono::hours limit{24 * 3650};
    return Deadline(Clock::now() + (d < limit ? std::chrono::duration_cast<Clock::duration>(d) : limit));
  }
  static Deadline at(Clock::time_point t) { return Deadline(t); }

  Clock::time_point time() const { return time_; }
  bool passed() const { return Clock::now() >= time_; }
  /// Time left, never negative.
  Clock::duration left() const { return std::max(Clock::duration::zero(), time_ - Clock::now()); }

 private:
  explicit Deadline(Clock::time_point t) : time_(t) {}
  Clock::time_point time_;
};

}  // namespace tandem

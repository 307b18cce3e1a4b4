// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace tandem::tcp {

/// Whether this machine has a core to spare at the moment: no more threads want to run than there are cores. Only then
/// does a thread that waits lose nothing by watching instead of sleeping; otherwise it would use up, by doing nothing,
/// the time that it is given, and not run when it is needed.
class IdleCores {
 public:
  using Clock = std::chrono::steady_clock;

  IdleCores();
  ~IdleCores();
  IdleCores(const IdleCores&) = delete;

  /// Asks the system now and then, and otherwise repeats its last answer.
  bool present(Clock::time_point now);

 private:
  int load_;  // descriptor of /proc/loadavg; -1: never present
  const long cores_;
  bool present_ = false;
  Clock::time_point ask_again_{};
};

}  // namespace tandem::tcp

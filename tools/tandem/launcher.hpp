// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tandem::cli {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;  ///< [0] is looked up in PATH unless it has a slash
  bool prefix = false;               ///< "[rank] " in front of every line of a rank
  /// How long the ranks have to end by themselves once one of them has failed, or once the launcher got a signal.
  std::chrono::milliseconds grace{5000};
  std::string name = "tandem launch";  ///< in front of messages
};

/// Runs `ranks` local processes of `command` that meet in a store on the loopback interface, and waits for all of them.
/// A rank finds TANDEM_STORE, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in its environment.
///
/// When a rank fails the others hear of it through the store; those still there after the grace period get SIGTERM, and
/// SIGKILL a second later. SIGINT, SIGTERM and SIGHUP are passed on. No process outlives the call, nor this process
/// should it be killed. Returns 0 or the exit code of the first rank that failed (128 + signal for a signal, the
/// launcher's own included). Failures are reported on stderr. Call it on the main thread, before other threads exist.
/// Throws Error if the store or a process cannot be started.
int launch(const LaunchOptions& options);

}  // namespace tandem::cli

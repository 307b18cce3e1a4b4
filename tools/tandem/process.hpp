// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.hpp"

/// Local processes and signals, as much as `tandem launch` needs of them.
namespace tandem::cli {

using detail::Fd;

/// Writes all of it, through interruptions and full pipes. False, and errno, if it cannot.
bool write_all(int fd, std::string_view bytes) noexcept;
/// The same to stdout. Throws Error if it cannot: a result that is not there must not look like a success.
void print_result(std::string_view text);

/// "signal 9 (Killed)".
std::string describe_signal(int signal);

/// While it lives the signals of a launcher (INT, TERM, HUP, CHLD) do not interrupt this process but can be read here.
/// Make it before any thread, so that all of them inherit the mask.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  int fd() const noexcept { return fd_.get(); }
  /// The next signal, or 0.
  int next() noexcept;
  /// The mask from before, for children.
  const sigset_t& old_mask() const noexcept { return old_; }

 private:
  sigset_t old_{};
  Fd fd_;
};

struct SpawnOptions {
  std::vector<std::string> command;      ///< [0] is looked up in PATH unless it has a slash
  std::vector<std::string> environment;  ///< NAME=value each, all of it
  bool capture = false;                  ///< give pipes for stdout and stderr
  sigset_t mask{};
};

/// A child in a process group of its own, which the kernel kills if the thread that made it ends. Its standard input is
/// empty. Destroying it kills it and whatever else is in its group.
class Process {
 public:
  /// Throws Error (invalid_argument: cannot run the command, saying why).
  explicit Process(const SpawnOptions& options);
  Process(Process&&) noexcept = default;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const noexcept { return pid_; }
  bool ended() const noexcept { return !pid_ || status_.has_value(); }
  /// True if it has ended by now. What it left in its group is killed then.
  bool reap() noexcept;
  /// To the whole group. Nothing happens if it has ended.
  void signal(int signal) const noexcept;
  /// Exit code, or 128 + signal; only once it ended.
  int exit_code() const noexcept;
  /// "exited with code 3", "was killed by signal 9 (Killed)".
  std::string describe_end() const;

  const Fd& output() const noexcept { return output_; }
  const Fd& errors() const noexcept { return errors_; }

 private:
  struct Pid {
    Pid() = default;
    Pid(Pid&& other) noexcept : value(std::exchange(other.value, 0)) {}
    Pid& operator=(Pid&&) = delete;
    operator pid_t() const noexcept { return value; }
    pid_t value = 0;
  };
  Pid pid_;
  std::optional<int> status_;
  Fd output_;
  Fd errors_;
};

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "tandem/deadline.hpp"

namespace tandem::testing {

/// A forked process with a line to it and one back. Fork before the test starts threads. Killed and reaped at the
/// latest by the destructor.
class Child {
 public:
  /// What the body sees of its parent.
  struct Parent {
    int from;
    int to;
    /// Waits for a line; "" if the parent is gone.
    std::string receive() const { return read_line(from); }
    void send(const std::string& line) const { write_line(to, line); }
  };

  explicit Child(const std::function<int(Parent)>& body) {
    int down[2], up[2];
    if (::pipe(down) != 0 || ::pipe(up) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(down[1]);
      ::close(up[0]);
      ::_exit(run(body, {down[0], up[1]}));
    }
    ::close(down[0]);
    ::close(up[1]);
    to_ = down[1];
    from_ = up[0];
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), to_(std::exchange(other.to_, -1)), from_(std::exchange(other.from_, -1)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ > 0) {
      kill(SIGKILL);
      reap();
    }
    if (to_ >= 0) ::close(to_);
    if (from_ >= 0) ::close(from_);
  }

  void send(const std::string& line) const { write_line(to_, line); }
  std::string receive() const { return read_line(from_); }
  void kill(int signal) const { ::kill(pid_, signal); }
  /// The exit code, or 128 + the signal that ended it.
  int reap() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static int run(const std::function<int(Parent)>& body, Parent parent) {
    try {
      return body(parent);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "a child of the test threw: %s\n", e.what());
      return 99;
    }
  }
  static std::string read_line(int fd) {
    std::string line;
    char c = 0;
    while (true) {
      pollfd entry{fd, POLLIN, 0};
      if (::poll(&entry, 1, 20000) != 1 || ::read(fd, &c, 1) != 1) return {};
      if (c == '\n') return line;
      line += c;
    }
  }
  static void write_line(int fd, const std::string& line) {
    const std::string text = line + "\n";
    if (::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) ::perror("write to a pipe");
  }

  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
};

}  // namespace tandem::testing

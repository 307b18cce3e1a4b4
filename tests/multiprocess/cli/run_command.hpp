// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace tandem::testing {

struct Ended {
  int code = -1;  ///< exit code, 128 + signal, or -1 if it had to be killed at the time limit
  std::string out;
  std::string err;
  std::chrono::milliseconds took{0};
};

/// A child process whose output is collected. Killed, with its process group, if it is still there at the end.
class Running {
 public:
  /// `environment` ("NAME=value") is added to that of the test, from which what launchers set is removed.
  Running(const std::vector<std::string>& command, const std::vector<std::string>& environment = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void kill(int signal) const;
  /// Blocks; kills it when the limit passes.
  Ended wait(std::chrono::milliseconds limit = std::chrono::seconds(60));

 private:
  std::chrono::steady_clock::time_point started_;
  pid_t pid_ = 0;
  int out_ = -1;
  int err_ = -1;
};

/// `tandem` with these arguments.
std::vector<std::string> tandem_command(const std::vector<std::string>& arguments);
Ended run_tandem(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

/// Direct children of a process, in the order they were made.
std::vector<pid_t> children_of(pid_t process);
/// Waits up to five seconds until `process` has that many children that run `tandem` or whatever else; {} if it never
/// does.
std::vector<pid_t> wait_for_children(pid_t process, std::size_t count);
/// True once no process has this number, or only a zombie; waits up to `limit`.
bool gone(pid_t process, std::chrono::milliseconds limit);

/// An empty folder that goes away with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const;
  std::vector<std::string> files() const;

 private:
  std::string path_;
};

}  // namespace tandem::testing

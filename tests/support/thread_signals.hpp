// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tandem::testing {

struct ThreadSignals {
  std::string name;
  std::uint64_t blocked = 0;  ///< bit n - 1 stands for signal n
  bool blocks(int signal) const { return ((blocked >> (signal - 1)) & 1) != 0; }
};

/// Of every thread of this process but the first, as the system tells; threads that end meanwhile may be missing.
inline std::vector<ThreadSignals> threads_here() {
  std::vector<ThreadSignals> threads;
  const std::string process = std::filesystem::read_symlink("/proc/self").string();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    if (entry.path().filename() == process) continue;
    std::ifstream status(entry.path() / "status");
    ThreadSignals thread;
    bool known = false;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Name:")) thread.name = line.substr(6);
      if (!line.starts_with("SigBlk:")) continue;
      thread.blocked = std::stoull(line.substr(8), nullptr, 16);
      known = true;
    }
    if (known) threads.push_back(thread);
  }
  return threads;
}

}  // namespace tandem::testing

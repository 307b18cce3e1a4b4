// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/p2p/worker.hpp"

extern char** environ;

namespace tandem::testing_p2p {

using Clock = std::chrono::steady_clock;

/// Starts this program once for each rank. Ranks share GPUs where there are more of them than GPUs.
class World : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || count == 0) GTEST_SKIP() << "SKIPPED: no GPU: " << cudaGetErrorString(result);
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem-p2p-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  /// The wait statuses of all ranks; what they said goes into output(rank). Ranks that run longer than a minute are
  /// killed.
  std::vector<int> run(int size, const std::string& scenario, const std::string& numbers = "",
                       const std::string& connections = "") {
    std::vector<std::string> environment = environment_;
    for (char** e = environ; *e != nullptr; ++e) {
      if (!is_replaced(*e)) environment.emplace_back(*e);
    }
    if (!connections.empty()) environment.push_back("CUDA_DEVICE_MAX_CONNECTIONS=" + connections);
    environment.push_back("MASTER_ADDR=127.0.0.1");
    environment.push_back(fmt::format("MASTER_PORT={}", free_port()));
    environment.push_back(fmt::format("WORLD_SIZE={}", size));
    environment.emplace_back();  // of the rank
    const auto meeting = directory_ / fmt::format("run{}", runs_++);
    std::filesystem::create_directory(meeting);
    std::vector<pid_t> children;
    for (int r = 0; r < size; ++r) {
      std::vector<std::string> words{"/proc/self/exe",     "worker",         std::to_string(r),
                                     std::to_string(size), meeting.string(), scenario};
      std::istringstream in(numbers);
      for (std::string word; in >> word;) words.push_back(word);
      environment.back() = fmt::format("RANK={}", r);
      children.push_back(start(words, environment, output_file(r)));
    }
    std::vector<int> statuses(children.size());
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    for (std::size_t r = 0; r < children.size(); ++r) {
      while (::waitpid(children[r], &statuses[r], WNOHANG) == 0) {
        if (Clock::now() > deadline) ::kill(children[r], SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return statuses;
  }

  void expect_success(int size, const std::string& scenario, const std::string& numbers = "",
                      const std::string& connections = "") {
    SCOPED_TRACE(fmt::format("{} ranks, {} {}, connections '{}'", size, scenario, numbers, connections));
    const auto statuses = run(size, scenario, numbers, connections);
    for (int r = 0; r < size; ++r)
      EXPECT_EQ(statuses[static_cast<std::size_t>(r)], 0) << "rank " << r << ": " << output(r);
  }

  /// What ranks have in their environment besides, or instead of, that of this process: "NAME=value".
  void set_environment(std::vector<std::string> variables) { environment_ = std::move(variables); }

  std::string output(int rank) const {
    std::ostringstream text;
    text << std::ifstream(output_file(rank)).rdbuf();
    return text.str();
  }

 private:
  bool is_replaced(const std::string& variable) const {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    return std::any_of(environment_.begin(), environment_.end(),
                       [&](const std::string& other) { return other.starts_with(name); });
  }

  std::string output_file(int rank) const { return (directory_ / fmt::format("output.{}", rank)).string(); }

  static int free_port() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(where);
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&where), length), 0);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&where), &length);
    ::close(fd);
    return ntohs(where.sin_port);
  }

  static pid_t start(std::vector<std::string>& words, std::vector<std::string>& environment,
                     const std::string& output) {
    const auto pointers = [](std::vector<std::string>& list) {
      std::vector<char*> all;
      for (std::string& s : list) all.push_back(s.data());
      all.push_back(nullptr);
      return all;
    };
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child = -1;
    EXPECT_EQ(::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers(words).data(),
                            pointers(environment).data()),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
    return child;
  }

  std::filesystem::path directory_;
  std::vector<std::string> environment_;
  int runs_ = 0;
};

/// The main() of a program with such tests: `scenario` runs one rank, and returns its exit status.
inline int world_main(int argc, char** argv, int (*scenario)(const Arguments&)) {
  if (argc >= 6 && std::string(argv[1]) == "worker") {
    Arguments a;
    a.rank = std::atoi(argv[2]);
    a.size = std::atoi(argv[3]);
    a.meeting_point = argv[4];
    a.scenario = argv[5];
    for (int i = 6; i < argc; ++i) {
      const std::string word = argv[i];
      const auto equals = word.find('=');
      a.numbers[word.substr(0, equals)] = std::atol(word.c_str() + equals + 1);
    }
    return scenario(a);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace tandem::testing_p2p

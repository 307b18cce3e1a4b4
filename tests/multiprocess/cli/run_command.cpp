// SPDX-License-Identifier: Apache-2.0
#include "run_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

extern char** environ;

namespace tandem::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> clean_environment(const std::vector<std::string>& added) {
  std::vector<std::string> result = added;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool launcher = name.starts_with("TANDEM_") || name.starts_with("MASTER_") || name == "RANK" ||
                          name == "WORLD_SIZE" || name.starts_with("LOCAL_");
    if (!launcher) result.emplace_back(text);
  }
  return result;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

void read_into(int& fd, std::string& text) {
  char buffer[65536];
  const ssize_t n = read(fd, buffer, sizeof(buffer));
  if (n > 0) {
    text.append(buffer, static_cast<std::size_t>(n));
  } else if (n == 0 || errno != EINTR) {
    close(fd);
    fd = -1;
  }
}

// {state, parent} of a process; state is 0 if there is none.
std::pair<char, pid_t> process_state(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {'\0', 0};
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return {state, parent};
}

}  // namespace

Running::Running(const std::vector<std::string>& command, const std::vector<std::string>& environment)
    : started_(Clock::now()) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const std::vector<std::string> variables = clean_environment(environment);
  const int error = posix_spawnp(&pid_, command.at(0).c_str(), &actions, &attributes, pointers(command).data(),
                                 pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  if (error != 0) throw std::runtime_error("cannot run " + command[0]);
}

Running::~Running() {
  if (pid_ != 0) wait(std::chrono::milliseconds(0));
}

void Running::kill(int signal) const { ::kill(pid_, signal); }

Ended Running::wait(std::chrono::milliseconds limit) {
  Ended ended;
  const auto deadline = Clock::now() + limit;
  bool killed = false;
  while (out_ >= 0 || err_ >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 && !killed) {
      ::kill(-pid_, SIGKILL);
      killed = true;
    }
    pollfd ready[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    poll(ready, 2, killed ? 1000 : static_cast<int>(left) + 1);
    if (killed && ready[0].revents == 0 && ready[1].revents == 0) break;  // something left the group and lives on
    if (ready[0].revents != 0) read_into(out_, ended.out);
    if (ready[1].revents != 0) read_into(err_, ended.err);
  }
  if (out_ >= 0) close(out_);
  if (err_ >= 0) close(err_);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  ended.took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_);
  if (!killed) ended.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return ended;
}

std::vector<std::string> tandem_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{TANDEM_COMMAND};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Ended run_tandem(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return Running(tandem_command(arguments), environment).wait();
}

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const auto [state, parent] = process_state(std::stoi(name));
    if (parent == process && state != 'Z') result.push_back(std::stoi(name));
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<pid_t> wait_for_children(pid_t process, std::size_t count) {
  for (int i = 0; i < 500; ++i) {
    std::vector<pid_t> children = children_of(process);
    if (children.size() == count) return children;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

bool gone(pid_t process, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (true) {
    const char state = process_state(process).first;
    if (state == '\0' || state == 'Z') return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tandem-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
  return path(name);
}

std::vector<std::string> TemporaryFolder::files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tandem::testing

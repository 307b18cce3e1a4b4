// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tandem/error.hpp"

namespace tandem::cli {
namespace {

[[noreturn]] void throw_system(const std::string& what, int error) {
  throw Error(ErrorCode::internal, fmt::format("{}: {}", what, std::strerror(error)));
}

struct Pipe {
  Fd read;
  Fd write;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_system("cannot make a pipe", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

// Looked up before the fork: afterwards only async-signal-safe calls are allowed, as other threads may hold locks.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/bin:/bin";
  while (true) {
    const std::size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    std::string candidate = folder.empty() ? "./" + name : fmt::format("{}/{}", folder, name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("cannot run '{}': not found in PATH", name));
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const sigset_t* mask;
  pid_t parent;
  int input, output, errors;  // output and errors: -1 leaves them as they are
  int failure;                // the errno of a failed exec goes here
};

[[noreturn]] void run_child(const ChildPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before prctl took effect.
  if (getppid() != plan.parent) _exit(127);
  dup2(plan.input, STDIN_FILENO);
  if (plan.output >= 0) dup2(plan.output, STDOUT_FILENO);
  if (plan.errors >= 0) dup2(plan.errors, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, plan.mask, nullptr);
  execve(plan.program, plan.arguments, plan.environment);
  const int error = errno;
  while (write(plan.failure, &error, sizeof(error)) < 0 && errno == EINTR) {
  }
  _exit(127);
}

}  // namespace

bool write_all(int fd, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void print_result(std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("cannot write to stdout: {}", std::strerror(errno)));
}

std::string describe_signal(int signal) { return fmt::format("signal {} ({})", signal, strsignal(signal)); }

SignalQueue::SignalQueue() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, s);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, &old_); error != 0)
    throw_system("cannot block signals", error);
  fd_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.valid()) {
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
    throw_system("cannot read signals", error);
  }
}

SignalQueue::~SignalQueue() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

int SignalQueue::next() noexcept {
  signalfd_siginfo info{};
  return read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)) ? static_cast<int>(info.ssi_signo)
                                                                                    : 0;
}

Process::Process(const SpawnOptions& options) {
  const std::string program = find_program(options.command.at(0));
  const std::vector<char*> arguments = pointers(options.command);
  const std::vector<char*> environment = pointers(options.environment);
  const Fd input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe failure = make_pipe();
  Pipe output;
  Pipe errors;
  if (options.capture) {
    output = make_pipe();
    errors = make_pipe();
  }
  const ChildPlan plan{program.c_str(), arguments.data(),   environment.data(), &options.mask,      getpid(),
                       input.get(),     output.write.get(), errors.write.get(), failure.write.get()};
  pid_.value = fork();
  if (pid_ < 0) {
    const int error = errno;
    pid_.value = 0;
    throw_system("cannot start a process", error);
  }
  if (pid_ == 0) run_child(plan);
  setpgid(pid_, pid_);  // here too: a signal may be sent before the child ran
  failure.write.reset();
  int error = 0;
  ssize_t n = 0;
  while ((n = read(failure.read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (n == static_cast<ssize_t>(sizeof(error))) {
    waitpid(pid_, nullptr, 0);
    pid_.value = 0;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cannot run '{}': {}", options.command[0], std::strerror(error)));
  }
  output_ = std::move(output.read);
  errors_ = std::move(errors.read);
}

Process::~Process() {
  if (ended()) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool Process::reap() noexcept {
  if (ended()) return true;
  siginfo_t info{};
  // Seen first and reaped later: as long as the zombie is there its number names no other process group.
  if (waitid(P_PID, static_cast<id_t>(pid_.value), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return false;
  }
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = status;
  return true;
}

void Process::signal(int signal) const noexcept {
  if (!ended()) kill(-pid_, signal);
}

int Process::exit_code() const noexcept {
  const int status = status_.value_or(0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string Process::describe_end() const {
  const int status = status_.value_or(0);
  if (WIFSIGNALED(status)) return "was killed by " + describe_signal(WTERMSIG(status));
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

}  // namespace tandem::cli

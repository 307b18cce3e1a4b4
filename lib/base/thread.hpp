// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <csignal>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace tandem::detail {

/// Names the calling thread for debuggers and `top`. The system keeps 15 characters; longer names are cut.
inline void set_thread_name(std::string_view name) noexcept {
  char cut[16] = {};
  name.substr(0, sizeof(cut) - 1).copy(cut, sizeof(cut) - 1);
  pthread_setname_np(pthread_self(), cut);
}

/// While it lives, threads that the calling thread starts leave the process's signals to threads that know of them: one
/// that took SIGCHLD or SIGTERM would keep it from a signalfd or sigwait elsewhere. What a thread does to itself, and
/// profilers, still reach it.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t others;
    sigfillset(&others);
    for (const int s : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPROF, SIGSEGV, SIGSYS, SIGTRAP}) sigdelset(&others, s);
    pthread_sigmask(SIG_BLOCK, &others, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// How the library starts a thread: with SignalsBlocked.
template <class Run>
std::thread start_thread(Run&& run) {
  const SignalsBlocked blocked;
  return std::thread(std::forward<Run>(run));
}

}  // namespace tandem::detail

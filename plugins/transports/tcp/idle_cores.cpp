// SPDX-License-Identifier: Apache-2.0
#include "transports/tcp/idle_cores.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace tandem::tcp {

IdleCores::IdleCores()
    : load_(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC)), cores_(::sysconf(_SC_NPROCESSORS_ONLN)) {}

IdleCores::~IdleCores() {
  if (load_ >= 0) ::close(load_);
}

bool IdleCores::present(Clock::time_point now) {
  if (now < ask_again_) return present_;
  char text[64] = {};
  long runnable = 0;
  // "0.20 0.18 0.12 2/345 11206": the threads that run or want to, of all there are.
  present_ = load_ >= 0 && ::pread(load_, text, sizeof(text) - 1, 0) > 0 &&
             std::sscanf(text, "%*s %*s %*s %ld/", &runnable) == 1 && runnable <= cores_;
  ask_again_ = now + (present_ ? std::chrono::microseconds(1000) : std::chrono::microseconds(300));
  return present_;
}

}  // namespace tandem::tcp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <string>
#include <string_view>

namespace tandem::detail {

/// Names the calling thread for debuggers and `top`. The system keeps 15 characters; longer names are cut.
inline void set_thread_name(std::string_view name) noexcept {
  char cut[16] = {};
  name.substr(0, sizeof(cut) - 1).copy(cut, sizeof(cut) - 1);
  pthread_setname_np(pthread_self(), cut);
}

}  // namespace tandem::detail

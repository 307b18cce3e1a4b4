// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "transports/common/plugin.hpp"

namespace tandem::tcp {

/// A posted transfer that has not completed yet.
struct Operation {
  int peer = 0;
  bool is_send = false;
  char* buffer = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t tag = 0;
  tandem_completion_fn on_complete = nullptr;
  void* user = nullptr;
  std::uint64_t index = 0;

  void complete(ErrorCode code, const std::string& message = {}) const {
    on_complete(user, index, plugin::status(code), message.c_str());
  }
};

}  // namespace tandem::tcp

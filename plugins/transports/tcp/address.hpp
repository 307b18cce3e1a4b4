// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transports/tcp/socket.hpp"

namespace tandem::tcp {

/// Where a rank listens, as it tells the others.
struct Address {
  std::string host;  // identity: equal on one host
  std::uint16_t port = 0;
  std::vector<std::string> addresses;
  std::string local_name;  // of its Unix socket; "" is none

  std::string encode() const;
  /// Throws tandem::Error (invalid_argument).
  static Address decode(std::string_view bytes);
  /// What a rank on `own_host` should try, best first: on one host the Unix socket and
  /// loopback lead, between hosts they are left out.
  std::vector<Endpoint> candidates(const std::string& own_host) const;
};

}  // namespace tandem::tcp

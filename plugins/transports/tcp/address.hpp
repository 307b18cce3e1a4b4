// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
// asio's headers use std::exchange without including <utility> themselves.
#include <boost/asio/ip/tcp.hpp>

namespace tandem::tcp {

/// Where a rank listens, as it tells the others.
struct Address {
  std::string host;  // identity: equal on one host
  std::uint16_t port = 0;
  std::vector<std::string> addresses;

  std::string encode() const;
  /// Throws tandem::Error (invalid_argument).
  static Address decode(std::string_view bytes);
  /// What a rank on `own_host` should try, best first: on one host loopback leads, between hosts it is left out.
  std::vector<boost::asio::ip::tcp::endpoint> candidates(const std::string& own_host) const;
};

}  // namespace tandem::tcp

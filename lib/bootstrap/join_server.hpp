// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "bootstrap/sockets.hpp"
#include "tandem/store.hpp"

namespace tandem::detail {

/// A connection that the server has welcomed.
struct Joined {
  boost::asio::ip::tcp::socket socket;
  std::chrono::milliseconds server_heartbeat_timeout;
};

/// Tries all addresses of the endpoint, again and again, until one welcomes this rank. Errors as connect_store().
Joined join_server(boost::asio::io_context& io, const TcpStoreOptions& options, Deadline deadline);

}  // namespace tandem::detail

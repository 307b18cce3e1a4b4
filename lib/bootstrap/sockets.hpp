// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "bootstrap/asio.hpp"

namespace tandem::detail {

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// "host:port" or "[v6 address]:port". Throws invalid_argument that quotes the text.
HostPort parse_host_port(std::string_view text);
std::string format_host_port(const boost::asio::ip::tcp::endpoint& endpoint);

/// Sockets made here are closed on exec from their first moment: another thread may fork at any time.
/// Throws boost::system::system_error.
boost::asio::ip::tcp::socket open_socket(boost::asio::io_context& io, const boost::asio::ip::tcp& protocol);

/// Listens on `address` ("" is all of IPv6 and IPv4). Throws transport naming address, port and the system's reason, or
/// invalid_argument if the text is no address.
boost::asio::ip::tcp::acceptor listen_on(boost::asio::io_context& io, const std::string& address, std::uint16_t port);
/// Takes a connection that is waiting. Without one, or if it cannot be taken, `error` says so.
boost::asio::ip::tcp::socket accept_from(boost::asio::ip::tcp::acceptor& acceptor, boost::system::error_code& error);

/// Small messages leave at once, and a host that vanished is noticed. Failing to set an option is not an error.
void set_stream_options(boost::asio::ip::tcp::socket& socket);

/// Runs handlers until there are none, or io is stopped. One that throws (memory ran out) is logged, not fatal: what it
/// served falls silent and is found by its deadlines.
void run_loop(boost::asio::io_context& io, std::string_view owner) noexcept;

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
// asio's headers use std::exchange without including <utility> themselves.
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>

/// Connections between hosts are TCP's. Between processes of one host they are Unix sockets, which carry the same bytes
/// in less than half the time because no network protocol runs under them. These types hold both.
namespace tandem::tcp {

using Socket = boost::asio::generic::stream_protocol::socket;
using Endpoint = boost::asio::generic::stream_protocol::endpoint;
using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;

/// "127.0.0.1:4711" or "Unix socket 0002a".
std::string describe(const Endpoint& endpoint);
bool is_local(const Endpoint& endpoint);

/// A name that listen_locally() chose, as an endpoint. It lives in the network namespace, not in the file system, and
/// vanishes with its socket.
Endpoint local_endpoint(const std::string& name);

/// Listens on a TCP address, "" is all of them, at a free port. Throws tandem::Error.
Acceptor listen_on(boost::asio::io_context& io, const std::string& address, std::uint16_t* port);
/// Listens on a Unix socket under a name that nobody else has. Throws tandem::Error (transport).
Acceptor listen_locally(boost::asio::io_context& io, std::string* name);

/// Sockets made here are closed on exec from their first moment. Both report failures in `error`.
Socket open_socket(boost::asio::io_context& io, const Endpoint& to, boost::system::error_code& error);
Socket accept_from(Acceptor& acceptor, boost::system::error_code& error);

/// Small messages leave at once, a host that vanished is noticed, and both buffers hold `buffer_bytes`; 0 leaves them
/// as they are best. Failing to set an option is not an error.
void set_options(Socket& socket, std::uint64_t buffer_bytes);

}  // namespace tandem::tcp

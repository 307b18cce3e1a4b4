// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/sockets.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <charconv>

#include "base/log.hpp"
#include "tandem/error.hpp"

namespace tandem::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

error_code last_error() { return {errno, boost::system::system_category()}; }

int new_socket(const tcp& protocol) {
  return ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, protocol.protocol());
}

// An acceptor that listens on `endpoint`, or `error`.
tcp::acceptor try_listen(asio::io_context& io, const tcp::endpoint& endpoint, error_code& error) {
  tcp::acceptor acceptor(io);
  const int fd = new_socket(endpoint.protocol());
  if (fd < 0) {
    error = last_error();
    return acceptor;
  }
  acceptor.assign(endpoint.protocol(), fd);
  // A restarted job must not wait for the last one's connections to time out.
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  if (endpoint.address().is_v6()) {
    acceptor.set_option(asio::ip::v6_only(!endpoint.address().to_v6().is_unspecified()), error);
  }
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor.non_blocking(true, error);
  return acceptor;
}

bool means_no_ipv6(const error_code& error) {
  return error == asio::error::address_family_not_supported || error.value() == EADDRNOTAVAIL;
}

}  // namespace

HostPort parse_host_port(std::string_view text) {
  const auto bad = [&](const char* why) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("'{}' is not an endpoint, which is host:port or [IPv6 address]:port: {}", text, why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) throw bad("the port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    throw bad("an IPv6 address needs brackets");
  }
  if (host.empty()) throw bad("the host is missing");
  std::uint16_t port = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || stop != digits.data() + digits.size() || port == 0) {
    throw bad("the port is not a number from 1 to 65535");
  }
  return {std::string(host), port};
}

std::string format_host_port(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

tcp::socket open_socket(asio::io_context& io, const tcp& protocol) {
  const int fd = new_socket(protocol);
  if (fd < 0) throw boost::system::system_error(last_error(), "socket");
  return tcp::socket(io, protocol, fd);
}

tcp::acceptor listen_on(asio::io_context& io, const std::string& address, std::uint16_t port) {
  error_code error;
  const auto fail = [&](const std::string& shown) {
    return Error(ErrorCode::transport, fmt::format("cannot listen on {} port {}: {}", shown, port, error.message()));
  };
  if (address.empty()) {
    tcp::acceptor both = try_listen(io, {tcp::v6(), port}, error);
    if (!error) return both;
    if (!means_no_ipv6(error)) throw fail("all addresses,");
    error.clear();
    tcp::acceptor v4 = try_listen(io, {tcp::v4(), port}, error);
    if (error) throw fail("all IPv4 addresses,");
    return v4;
  }
  const asio::ip::address parsed = asio::ip::make_address(address, error);
  if (error) throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is not an IPv4 or IPv6 address", address));
  tcp::acceptor acceptor = try_listen(io, {parsed, port}, error);
  if (error) throw fail(address);
  return acceptor;
}

tcp::socket accept_from(tcp::acceptor& acceptor, error_code& error) {
  tcp::endpoint peer;
  auto length = static_cast<socklen_t>(peer.capacity());
  const int fd = ::accept4(acceptor.native_handle(), peer.data(), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
  tcp::socket socket(acceptor.get_executor());
  if (fd < 0) {
    error = last_error();
    return socket;
  }
  error.clear();
  peer.resize(length);
  socket.assign(peer.protocol(), fd);
  return socket;
}

void set_stream_options(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
}

void run_loop(asio::io_context& io, std::string_view owner) noexcept {
  while (true) {
    try {
      io.run();
      return;
    } catch (const std::exception& e) {
      log::error("{} failed to handle an event: {}", owner, e.what());
    }
  }
}

}  // namespace tandem::detail

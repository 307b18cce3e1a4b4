// SPDX-License-Identifier: Apache-2.0
#include "transports/tcp/socket.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstddef>

#include "bootstrap/sockets.hpp"
#include "tandem/error.hpp"

namespace tandem::tcp {
namespace asio = boost::asio;
using asio::generic::stream_protocol;
using boost::system::error_code;

namespace {

// TCP's buffers grow as they are used; those of a Unix socket stay at 208 KiB, less than one write of a stream.
constexpr int local_buffer_bytes = 1 << 20;

error_code last_error() { return {errno, boost::system::system_category()}; }

int new_socket(int family) { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

}  // namespace

bool is_local(const Endpoint& endpoint) { return endpoint.protocol().family() == AF_UNIX; }

std::string describe(const Endpoint& endpoint) {
  if (is_local(endpoint)) {
    const auto* const name = reinterpret_cast<const sockaddr_un*>(endpoint.data())->sun_path;
    const auto length = endpoint.size() - std::min(endpoint.size(), offsetof(sockaddr_un, sun_path) + 1);
    return fmt::format("Unix socket {}", std::string(name + 1, length));
  }
  asio::ip::tcp::endpoint ip;
  std::copy_n(reinterpret_cast<const char*>(endpoint.data()), std::min(endpoint.size(), ip.capacity()),
              reinterpret_cast<char*>(ip.data()));
  return detail::format_host_port(ip);
}

Endpoint local_endpoint(const std::string& name) {
  return asio::local::stream_protocol::endpoint(std::string(1, '\0') + name);
}

Acceptor listen_on(asio::io_context& io, const std::string& address, std::uint16_t* port) {
  auto tcp = detail::listen_on(io, address, 0);
  const auto where = tcp.local_endpoint();
  *port = where.port();
  return {io, stream_protocol(where.protocol()), tcp.release()};
}

Acceptor listen_locally(asio::io_context& io, std::string* name) {
  const int fd = new_socket(AF_UNIX);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(address);
  // An address without a name asks the system for one.
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address.sun_family)) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const auto reason = last_error().message();
    if (fd >= 0) ::close(fd);
    throw Error(ErrorCode::transport, fmt::format("cannot listen on a Unix socket: {}", reason));
  }
  name->assign(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  return {io, stream_protocol(AF_UNIX, 0), fd};
}

Socket open_socket(asio::io_context& io, const Endpoint& to, error_code& error) {
  Socket socket(io);
  const int fd = new_socket(to.protocol().family());
  if (fd < 0) {
    error = last_error();
    return socket;
  }
  socket.assign(to.protocol(), fd, error);
  return socket;
}

Socket accept_from(Acceptor& acceptor, error_code& error) {
  Socket socket(acceptor.get_executor());
  const auto protocol = acceptor.local_endpoint(error).protocol();
  const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    error = last_error();
    return socket;
  }
  socket.assign(protocol, fd, error);
  return socket;
}

void set_options(Socket& socket, std::uint64_t buffer_bytes) {
  error_code unknown;
  const auto here = socket.local_endpoint(unknown);
  const bool local = !unknown && is_local(here);
  if (!local) {
    socket.set_option(asio::ip::tcp::no_delay(true), unknown);
    socket.set_option(asio::socket_base::keep_alive(true), unknown);
  }
  const int bytes = buffer_bytes > 0 ? static_cast<int>(buffer_bytes) : local ? local_buffer_bytes : 0;
  if (bytes == 0) return;
  socket.set_option(asio::socket_base::send_buffer_size(bytes), unknown);
  socket.set_option(asio::socket_base::receive_buffer_size(bytes), unknown);
}

}  // namespace tandem::tcp

// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "transports/tcp/handshake.hpp"

namespace tandem::tcp {
namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::chrono::seconds patience{5};
constexpr int max_visitors = 512;

}  // namespace

Hello Membership::hello(Hello::Step step, int to) const {
  Hello hello;
  hello.step = step;
  hello.group = group;
  hello.from = rank;
  hello.to = to;
  hello.size = size;
  return hello;
}

/// A connection whose other end has not said yet who it is.
struct Listener::Visitor {
  Visitor(Socket s, std::shared_ptr<int> counter)
      : socket(std::move(s)), timer(socket.get_executor()), count(std::move(counter)) {
    ++*count;
  }
  ~Visitor() { --*count; }

  Socket socket;
  asio::steady_timer timer;
  std::shared_ptr<int> count;
  Hello hello;
};

Listener::Listener(asio::io_context& io, const Membership& self, const plugin::Host& host, IsAwaited is_awaited,
                   OnConnected on_connected)
    : io_(io), self_(self), host_(host), is_awaited_(std::move(is_awaited)), on_connected_(std::move(on_connected)) {}

std::uint16_t Listener::listen_on(const std::string& address) {
  std::uint16_t port = 0;
  auto& door = doors_.emplace_back(Door{tcp::listen_on(io_, address, &port), asio::steady_timer(io_)});
  if (self_.socket_buffer_bytes > 0) {  // the window's scale is agreed on before accept returns
    error_code ignored;
    const auto bytes = static_cast<int>(self_.socket_buffer_bytes);
    door.acceptor.set_option(asio::socket_base::receive_buffer_size(bytes), ignored);
  }
  return port;
}

std::string Listener::listen_locally() {
  std::string name;
  doors_.emplace_back(Door{tcp::listen_locally(io_, &name), asio::steady_timer(io_)});
  return name;
}

void Listener::start() {
  for (Door& door : doors_) accept(door);
}

void Listener::stop() {
  error_code ignored;
  for (Door& door : doors_) {
    door.acceptor.close(ignored);
    door.pause.cancel();
  }
}

void Listener::accept(Door& door) {
  door.acceptor.async_wait(Acceptor::wait_read, [this, &door](const error_code& canceled) {
    if (canceled) return;
    error_code error;
    auto socket = accept_from(door.acceptor, error);
    if (error && error != asio::error::would_block && error != asio::error::connection_aborted) {
      host_.log(TANDEM_LOG_WARN, "tcp: rank {} cannot accept a connection: {}", self_.rank, error.message());
      return pause(door);  // out of descriptors, say: the connection keeps waiting
    }
    if (!error && *visitors_ < max_visitors) greet(std::make_shared<Visitor>(std::move(socket), visitors_));
    accept(door);
  });
}

void Listener::pause(Door& door) {
  door.pause.expires_after(std::chrono::milliseconds(100));
  door.pause.async_wait([this, &door](const error_code& canceled) {
    if (!canceled) accept(door);
  });
}

void Listener::drop(Visitor& visitor, const std::string& reason) {
  ++dropped_;
  error_code unknown;
  const auto from = visitor.socket.remote_endpoint(unknown);
  host_.log(TANDEM_LOG_WARN, "tcp: rank {} dropped a connection from {}: {} ({} dropped so far)", self_.rank,
            unknown ? "somewhere" : describe(from), reason, dropped_);
  visitor.timer.cancel();
  visitor.socket.close(unknown);
}

std::string Listener::what_is_wrong(const Hello& hello, Hello::Step step) const {
  if (hello.magic != hello_magic) return "it does not speak this protocol";
  if (hello.version != wire_version)
    return fmt::format("it speaks wire version {}, this rank {}", hello.version, wire_version);
  if (hello.group != self_.group) return "it belongs to another group";
  if (hello.step != step || hello.to != self_.rank || hello.size != self_.size || hello.from <= self_.rank ||
      hello.from >= self_.size)
    return fmt::format("rank {} of {} has no reason to connect to rank {} (as step {})", hello.from, hello.size,
                       hello.to, hello.step);
  if (!is_awaited_(hello.from)) return fmt::format("rank {} is connected already", hello.from);
  return {};
}

void Listener::greet(std::shared_ptr<Visitor> visitor) {
  set_options(visitor->socket, self_.socket_buffer_bytes);
  visitor->timer.expires_after(patience);
  visitor->timer.async_wait([this, visitor](const error_code& canceled) {
    if (!canceled) drop(*visitor, "it said nothing for too long");
  });
  const auto confirmed = [this, visitor](const error_code& error, std::size_t) {
    visitor->timer.cancel();
    if (error) return;  // it chose another connection, or went away
    const auto wrong = what_is_wrong(visitor->hello, Hello::confirm);
    if (!wrong.empty()) return drop(*visitor, wrong);
    on_connected_(visitor->hello.from, std::move(visitor->socket));
  };
  const auto answered = [visitor, confirmed](const error_code& error, std::size_t) {
    if (error) return confirmed(error, 0);
    asio::async_read(visitor->socket, asio::buffer(&visitor->hello, sizeof(Hello)), confirmed);
  };
  const auto asked = [this, visitor, answered](const error_code& error, std::size_t got) {
    if (error) {
      visitor->timer.cancel();
      if (got > 0 && error == asio::error::eof) drop(*visitor, "it broke off in its first words");
      return;
    }
    const auto wrong = what_is_wrong(visitor->hello, Hello::ask);
    if (!wrong.empty()) return drop(*visitor, wrong);
    visitor->hello = self_.hello(Hello::accept, visitor->hello.from);
    asio::async_write(visitor->socket, asio::buffer(&visitor->hello, sizeof(Hello)), answered);
  };
  asio::async_read(visitor->socket, asio::buffer(&visitor->hello, sizeof(Hello)), asked);
}

}  // namespace tandem::tcp

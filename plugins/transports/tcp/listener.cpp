// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "bootstrap/sockets.hpp"
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

void set_options(asio::ip::tcp::socket& socket, const Membership& self) {
  detail::set_stream_options(socket);
  if (self.socket_buffer_bytes == 0) return;
  error_code ignored;
  const auto bytes = static_cast<int>(self.socket_buffer_bytes);
  socket.set_option(asio::socket_base::send_buffer_size(bytes), ignored);
  socket.set_option(asio::socket_base::receive_buffer_size(bytes), ignored);
}

/// A connection whose other end has not said yet who it is.
struct Listener::Visitor {
  Visitor(asio::ip::tcp::socket s, std::shared_ptr<int> counter)
      : socket(std::move(s)), timer(socket.get_executor()), count(std::move(counter)) {
    ++*count;
  }
  ~Visitor() { --*count; }

  asio::ip::tcp::socket socket;
  asio::steady_timer timer;
  std::shared_ptr<int> count;
  Hello hello;
};

Listener::Listener(asio::io_context& io, const std::string& address, const Membership& self, const plugin::Host& host,
                   IsAwaited is_awaited, OnConnected on_connected)
    : acceptor_(detail::listen_on(io, address, 0)),
      pause_(io),
      port_(acceptor_.local_endpoint().port()),
      self_(self),
      host_(host),
      is_awaited_(std::move(is_awaited)),
      on_connected_(std::move(on_connected)) {
  if (self.socket_buffer_bytes > 0) {  // the window's scale is agreed on before accept returns
    error_code ignored;
    acceptor_.set_option(asio::socket_base::receive_buffer_size(static_cast<int>(self.socket_buffer_bytes)), ignored);
  }
}

void Listener::stop() {
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void Listener::accept() {
  acceptor_.async_wait(acceptor_.wait_read, [this](const error_code& canceled) {
    if (canceled) return;
    error_code error;
    auto socket = detail::accept_from(acceptor_, error);
    if (error && error != asio::error::would_block && error != asio::error::connection_aborted) {
      host_.log(TANDEM_LOG_WARN, "tcp: rank {} cannot accept a connection: {}", self_.rank, error.message());
      return pause();  // out of descriptors, say: the connection keeps waiting
    }
    if (!error && *visitors_ < max_visitors) greet(std::make_shared<Visitor>(std::move(socket), visitors_));
    accept();
  });
}

void Listener::pause() {
  pause_.expires_after(std::chrono::milliseconds(100));
  pause_.async_wait([this](const error_code& canceled) {
    if (!canceled) accept();
  });
}

void Listener::drop(Visitor& visitor, const std::string& reason) {
  ++dropped_;
  error_code unknown;
  const auto from = visitor.socket.remote_endpoint(unknown);
  host_.log(TANDEM_LOG_WARN, "tcp: rank {} dropped a connection from {}: {} ({} dropped so far)", self_.rank,
            unknown ? "somewhere" : detail::format_host_port(from), reason, dropped_);
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
  set_options(visitor->socket, self_);
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>
// asio's headers use std::exchange without including <utility> themselves.
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "transports/common/plugin.hpp"
#include "transports/tcp/socket.hpp"
#include "transports/tcp/wire.hpp"

namespace tandem::tcp {

/// Both ways to a connection agree on this.
struct Membership {
  std::array<std::uint8_t, 16> group{};
  int rank = 0;
  int size = 0;
  std::uint64_t socket_buffer_bytes = 0;

  Hello hello(Hello::Step step, int to) const;
};

/// Accepts connections from the ranks above this one. Whoever says something else than the right hello, or nothing for
/// some seconds, is dropped and counted. Used on the progress thread only.
class Listener {
 public:
  /// May the rank still connect?
  using IsAwaited = std::function<bool(int rank)>;
  using OnConnected = std::function<void(int rank, Socket socket)>;

  /// Throws tandem::Error.
  Listener(boost::asio::io_context& io, const Membership& self, const plugin::Host& host, IsAwaited is_awaited,
           OnConnected on_connected);
  /// On a TCP address, "" is all; returns the port. On a Unix socket; returns its name. Both throw tandem::Error.
  std::uint16_t listen_on(const std::string& address);
  std::string listen_locally();
  void start();
  void stop();

 private:
  struct Visitor;
  struct Door {
    Acceptor acceptor;
    boost::asio::steady_timer pause;
  };
  void accept(Door& door);
  void pause(Door& door);
  void greet(std::shared_ptr<Visitor> visitor);
  void drop(Visitor& visitor, const std::string& reason);
  std::string what_is_wrong(const Hello& hello, Hello::Step step) const;

  boost::asio::io_context& io_;
  std::list<Door> doors_;
  const Membership self_;
  const plugin::Host& host_;
  const IsAwaited is_awaited_;
  const OnConnected on_connected_;
  std::uint64_t dropped_ = 0;
  std::shared_ptr<int> visitors_ = std::make_shared<int>(0);  // greeted and not yet known
};

/// Connects to one rank below this one: tries its addresses in turn, again and again until it succeeds or is stopped.
class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  using OnConnected = std::function<void(Socket socket)>;
  Dialer(boost::asio::io_context& io, const Membership& self, int peer, std::vector<Endpoint> candidates,
         const plugin::Host& host, OnConnected on_connected);
  void start() { attempt(); }
  void stop();

 private:
  void attempt();
  void greet();
  void failed(const std::string& reason);

  boost::asio::io_context& io_;
  const Membership self_;
  const int peer_;
  const std::vector<Endpoint> candidates_;
  const plugin::Host& host_;
  OnConnected on_connected_;
  Socket socket_;
  boost::asio::steady_timer timer_;
  std::size_t next_ = 0;
  std::chrono::milliseconds pause_{10};
  Hello hello_;
  bool stopped_ = false;
  bool warned_ = false;
};

}  // namespace tandem::tcp

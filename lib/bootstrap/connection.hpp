// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/sockets.hpp"
#include "bootstrap/wire.hpp"

namespace tandem::detail {

/// Messages over one socket. Lives on the thread of its io_context; nothing here is thread-safe.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using OnMessage = std::function<void(wire::Message message)>;
  using OnEnd = std::function<void(const std::string& reason)>;

  explicit Connection(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  /// `on_end` is called once if the connection breaks or the other side sends what it may not, never after finish() or
  /// close().
  void start(OnMessage on_message, OnEnd on_end);
  /// Bytes, framed already. Ignored once the connection has ended.
  void send(std::string frame);
  /// Stops reading, sends what is waiting, then closes; `done` is called then, also if the rest could not be sent.
  void finish(std::function<void()> done);
  void close();

  bool open() const noexcept { return !closed_; }
  /// Whether bytes have come since the last call.
  bool take_heard() noexcept { return std::exchange(heard_, false); }

 private:
  void read_length();
  void read_body(std::size_t bytes);
  void take_body();
  void write();
  void end(const std::string& reason);
  template <class Buffer, class Next>
  void read(const Buffer& buffer, Next next);

  boost::asio::ip::tcp::socket socket_;
  OnMessage on_message_;
  OnEnd on_end_;
  std::array<char, wire::length_bytes> length_{};
  std::string body_;
  std::string waiting_;
  std::string writing_;
  std::function<void()> finished_;
  bool closed_ = false;
  bool finishing_ = false;
  bool heard_ = false;
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/connection.hpp"

#include <fmt/format.h>

#include "base/bytes.hpp"

namespace tandem::detail {

namespace asio = boost::asio;
using boost::system::error_code;

void Connection::start(OnMessage on_message, OnEnd on_end) {
  on_message_ = std::move(on_message);
  on_end_ = std::move(on_end);
  read_length();
}

void Connection::send(std::string frame) {
  if (closed_ || finishing_) return;
  waiting_ += frame;
  write();
}

void Connection::finish(std::function<void()> done) {
  if (closed_) {
    if (done) done();
    return;
  }
  finishing_ = true;
  finished_ = std::move(done);
  if (writing_.empty()) close();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  if (auto done = std::exchange(finished_, nullptr)) done();
}

template <class Buffer, class Next>
void Connection::read(const Buffer& buffer, Next next) {
  // A long message counts as a sign of life while it is still on its way, not only when it is complete.
  const auto more = [self = shared_from_this()](const error_code& error, std::size_t bytes) {
    self->heard_ |= bytes > 0;
    return asio::transfer_all()(error, bytes);
  };
  const auto done = [self = shared_from_this(), next](const error_code& error, std::size_t bytes) {
    self->heard_ |= bytes > 0;
    if (self->closed_ || self->finishing_) return;
    if (error == asio::error::eof) {
      self->end("the connection was closed without good-bye");
    } else if (error) {
      self->end(error.message());
    } else {
      next();
    }
  };
  asio::async_read(socket_, buffer, more, done);
}

void Connection::read_length() {
  read(asio::buffer(length_), [this] {
    const std::size_t bytes = ByteReader(length_.data(), length_.size()).u32();
    if (bytes < wire::message_overhead || bytes > wire::max_message) {
      end(fmt::format("it sent a message of {} bytes; the limit is {}", bytes, wire::max_message));
    } else {
      read_body(bytes);
    }
  });
}

void Connection::read_body(std::size_t bytes) {
  body_.resize(bytes);
  read(asio::buffer(body_), [this] { take_body(); });
}

void Connection::take_body() {
  std::optional<wire::Message> message = wire::decode(body_);
  body_ = {};
  if (!message) return end("it sent a malformed message");
  on_message_(std::move(*message));
  if (!closed_ && !finishing_) read_length();
}

void Connection::write() {
  if (!writing_.empty() || waiting_.empty()) return;
  writing_.swap(waiting_);
  asio::async_write(socket_, asio::buffer(writing_), [self = shared_from_this()](const error_code& error, std::size_t) {
    self->writing_.clear();
    if (self->closed_) return;
    // A failed write is not the end: the other side's last words may still be unread, and reading finds the same
    // failure.
    if (error) self->waiting_.clear();
    self->write();
    if (self->finishing_ && self->writing_.empty()) self->close();
  });
}

void Connection::end(const std::string& reason) {
  const auto keep = shared_from_this();
  close();
  if (const OnEnd on_end = std::exchange(on_end_, nullptr)) on_end(reason);
}

}  // namespace tandem::detail

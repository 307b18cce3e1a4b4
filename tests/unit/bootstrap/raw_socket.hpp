// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace tandem::testing {

/// A plain blocking socket to or from 127.0.0.1: what strangers use who know nothing of the protocol.
class RawSocket {
 public:
  static RawSocket connect(std::uint16_t port) {
    RawSocket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in where = loopback(port);
    EXPECT_EQ(::connect(s.fd_, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    return s;
  }
  /// Listens on a port that the system chooses.
  static RawSocket listen() {
    RawSocket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in where = loopback(0);
    EXPECT_EQ(::bind(s.fd_, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    EXPECT_EQ(::listen(s.fd_, 16), 0);
    return s;
  }
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket& operator=(RawSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~RawSocket() {
    if (fd_ >= 0) ::close(fd_);
  }

  std::uint16_t port() const {
    sockaddr_in where{};
    socklen_t length = sizeof where;
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&where), &length), 0);
    return ntohs(where.sin_port);
  }
  RawSocket accept() const { return RawSocket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)); }
  /// False if the other side has closed already.
  bool send(const std::string& bytes) const {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  void finish_sending() const { ::shutdown(fd_, SHUT_WR); }
  /// Exactly that many bytes, fewer if the other side closes or nothing comes for 10 s.
  std::string receive(std::size_t bytes) const {
    std::string text;
    while (text.size() < bytes) {
      char buffer[4096];
      if (!readable()) break;
      const ssize_t n = ::recv(fd_, buffer, std::min(sizeof buffer, bytes - text.size()), 0);
      if (n <= 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
    }
    return text;
  }
  /// Waits until the other side closes; false if it does not within 10 s.
  bool closed_by_peer() const {
    while (readable()) {
      char buffer[4096];
      if (::recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
    }
    return false;
  }

 private:
  explicit RawSocket(int fd) : fd_(fd) { EXPECT_GE(fd_, 0); }
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return where;
  }
  bool readable() const {
    pollfd entry{fd_, POLLIN, 0};
    return ::poll(&entry, 1, 10000) == 1;
  }

  int fd_;
};

}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#include "transports/cuda_p2p/fd_service.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "base/thread.hpp"
#include "tandem/error.hpp"

namespace tandem::cuda_p2p {
namespace {

constexpr std::uint64_t request_magic = 0x31646670'6d646e74;
constexpr timeval patience{1, 0};  // for a message of some bytes within one host

struct Request {
  std::uint64_t magic = request_magic;
  Group group{};
  std::uint32_t kind = 0;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;
};

struct Reply {
  std::uint64_t offered = 0;
  std::uint64_t bytes = 0;
};

std::string last_error() { return std::generic_category().message(errno); }

void be_patient(int socket) {
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

void send_reply(int socket, Reply reply, int fd) {
  iovec part{&reply, sizeof(reply)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  if (fd >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

Fd receive_reply(int socket, Reply& reply) {
  iovec part{&reply, sizeof(reply)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof(reply))) return {};
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return Fd(fd);
}

/// One attempt. Without a descriptor `reason` says why.
Fd ask(const std::string& service, const Request& request, std::uint64_t* bytes, std::string* reason) {
  const Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(service.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, service.data(), length);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  be_patient(socket.get());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::send(socket.get(), &request, sizeof(request), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(request))) {
    *reason = last_error();
    return {};
  }
  Reply reply;
  Fd fd = receive_reply(socket.get(), reply);
  if (!fd.valid()) *reason = "the other side does not offer it";
  *bytes = reply.bytes;
  return fd;
}

}  // namespace

FdService::FdService(const Group& group)
    : group_(group), listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(address);
  int ends[2] = {-1, -1};
  // An address without a name asks the system for one that nobody has.
  if (!listener_.valid() ||
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address.sun_family)) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(ErrorCode::transport,
                fmt::format("cannot hand out file descriptors on a Unix socket: {}", last_error()));
  }
  stop_read_ = Fd(ends[0]);
  stop_write_ = Fd(ends[1]);
  name_.assign(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  thread_ = detail::start_thread([this] { serve(); });
}

FdService::~FdService() {
  stop_write_.reset();  // its other end sees that
  thread_.join();
}

void FdService::offer(const FdKey& key, int fd, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  offers_[key] = {fd, bytes};
}

void FdService::withdraw(const FdKey& key) {
  const std::lock_guard lock(mutex_);
  offers_.erase(key);
}

void FdService::serve() {
  detail::set_thread_name("tandem-fd");
  for (;;) {
    pollfd ready[] = {{listener_.get(), POLLIN, 0}, {stop_read_.get(), POLLIN, 0}};
    ::poll(ready, 2, -1);
    if (ready[1].revents != 0) return;
    const Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.valid()) {
      answer(client.get());
    } else if (errno == EMFILE || errno == ENFILE) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the connection keeps waiting
    }
  }
}

void FdService::answer(int client) {
  be_patient(client);
  Request request;
  if (::recv(client, &request, sizeof(request), 0) != static_cast<ssize_t>(sizeof(request))) return;
  if (request.magic != request_magic || request.group != group_) return;
  const std::lock_guard lock(mutex_);
  const auto offer = offers_.find({request.kind, request.number});
  if (offer == offers_.end()) return send_reply(client, {}, -1);
  send_reply(client, {1, offer->second.bytes}, offer->second.fd);
}

std::pair<Fd, std::uint64_t> fetch_fd(const std::string& service, const Group& group, const FdKey& key,
                                      Deadline deadline, const std::function<bool()>& stop) {
  Request request;
  request.group = group;
  request.kind = key.kind;
  request.number = key.number;
  std::string reason;
  for (;;) {
    std::uint64_t bytes = 0;
    Fd fd = ask(service, request, &bytes, &reason);
    if (fd.valid()) return {std::move(fd), bytes};
    if (stop && stop()) throw Error(ErrorCode::aborted, "the transport was closed");
    if (deadline.passed()) throw Error(ErrorCode::timeout, reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace tandem::cuda_p2p

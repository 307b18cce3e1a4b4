// SPDX-License-Identifier: Apache-2.0
// Nothing outlives the stores: descriptors, threads. Nothing leaks into programs that the process starts.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "unit/bootstrap/raw_socket.hpp"
#include "unit/bootstrap/threads.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using testing::error_of;
using testing::expect_threads;
using testing::in_ms;
using testing::soon;
using testing::TcpWorld;
using testing::threads;

std::vector<int> open_descriptors() {
  std::vector<int> fds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    if (::fcntl(fd, F_GETFD) >= 0) fds.push_back(fd);
  }
  std::erase_if(fds, [](int fd) { return ::fcntl(fd, F_GETFD) < 0; });  // the listing's own is closed by now
  return fds;
}

void one_round(int i) {
  TcpWorld w(2);
  auto a = w.join(0), b = w.join(1);
  testing::NoticeLog log;
  const auto handle = a->listen(log.listener());
  a->set("key", "value", soon());
  b->get("key", soon());
  const auto stranger = testing::RawSocket::connect(w.server().port());
  switch (i % 4) {
    case 0:
      a->leave(soon());
      b->leave(soon());
      break;
    case 1:
      b->announce({Store::Notice::Kind::aborted, 1, "why"});
      b->close();
      log.wait_for(Store::Notice::Kind::aborted, 1);
      break;
    case 2:
      w.server().stop();
      break;
    default:
      break;
  }
}

TEST(Lifetime, TcpStoresLeaveNothingBehind) {
  one_round(0);
  const std::size_t fds_before = open_descriptors().size(), threads_before = threads();
  for (int i = 0; i < 200; ++i) one_round(i);
  EXPECT_EQ(open_descriptors().size(), fds_before);
  expect_threads(threads_before);
}

TEST(Lifetime, FailedCreationLeavesNothingBehind) {
  TcpWorld w(2);
  const auto a = w.join(0);
  const auto fail = [&] {
    error_of(ErrorCode::invalid_argument, [&] { w.join(0); });
    TcpStoreOptions options = w.options_of(1);
    options.token = random_job_token();
    error_of(ErrorCode::timeout, [&] { connect_store(options, in_ms(3)); });
    StoreServerOptions taken;
    taken.address = "127.0.0.1";
    taken.port = w.server().port();
    error_of(ErrorCode::transport, [&] { StoreServer::start(taken); });
  };
  fail();
  a->set("key", "value", soon());
  const std::size_t threads_before = threads();
  const std::size_t fds_before = open_descriptors().size();
  for (int i = 0; i < 50; ++i) fail();
  // The server closes its ends on its own thread.
  const Deadline limit = soon();
  while (open_descriptors().size() != fds_before && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(open_descriptors().size(), fds_before);
  expect_threads(threads_before);
}

TEST(Lifetime, HashStoresLeaveNothingBehind) {
  std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first
  const std::size_t fds_before = open_descriptors().size(), threads_before = threads();
  for (int i = 0; i < 100; ++i) {
    testing::HashWorld w(2);
    const auto a = w.join(0), b = w.join(1);
    testing::NoticeLog log;
    const auto handle = a->listen(log.listener());
    if (i % 2 == 0) b->leave(soon());
  }
  EXPECT_EQ(open_descriptors().size(), fds_before);
  expect_threads(threads_before);
}

TEST(Lifetime, EveryDescriptorIsClosedOnExec) {
  const std::vector<int> before = open_descriptors();
  TcpWorld w(2);
  const auto a = w.join(0), b = w.join(1);
  a->set("key", "value", soon());
  int ours = 0;
  for (const int fd : open_descriptors()) {
    if (std::find(before.begin(), before.end(), fd) != before.end()) continue;
    EXPECT_TRUE((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0) << "descriptor " << fd;
    ++ours;
  }
  EXPECT_GE(ours, 5);  // the listener and both ends of two connections
}

TEST(Lifetime, AHandleMayOutliveItsStore) {
  std::shared_ptr<void> tcp_handle, hash_handle;
  {
    TcpWorld w(1);
    tcp_handle = w.join(0)->listen([](const Store::Notice&) {});
    testing::HashWorld h(1);
    hash_handle = h.join(0)->listen([](const Store::Notice&) {});
  }
}

TEST(Lifetime, AnotherServerTakesTheSamePortAtOnce) {
  std::uint16_t port = 0;
  for (int i = 0; i < 20; ++i) {
    StoreServerOptions options;
    options.address = "127.0.0.1";
    options.port = port;
    const auto server = StoreServer::start(options);
    port = server->port();
    TcpStoreOptions client;
    client.endpoint = "127.0.0.1:" + std::to_string(port);
    connect_store(client, soon())->set("key", "value", soon());
  }
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "bootstrap/wire.hpp"
#include "support/promptly.hpp"
#include "unit/bootstrap/raw_socket.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::in_ms;
using ::testing::IsEmpty;
using testing::NoticeLog;
using testing::RawSocket;
using testing::soon;
using testing::TcpWorld;
using Kind = Store::Notice::Kind;
namespace wire = detail::wire;

bool has_ipv6() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in6 where{};
  where.sin6_family = AF_INET6;
  where.sin6_addr = in6addr_loopback;
  const bool good = ::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0;
  ::close(fd);
  return good;
}

// What the server answers to this hello on a connection of its own.
wire::Message answer_to(TcpWorld& w, const wire::Hello& hello) {
  const RawSocket s = RawSocket::connect(w.server().port());
  EXPECT_TRUE(s.send(wire::encode(hello)));
  const std::string length = s.receive(wire::length_bytes);
  if (length.size() != wire::length_bytes) {
    ADD_FAILURE() << "the server closed without an answer";
    return {};
  }
  const auto message = wire::decode(s.receive(static_cast<unsigned char>(length[0])));
  EXPECT_TRUE(message.has_value());
  return message.value_or(wire::Message{});
}

TEST(TcpStore, AnotherTokenIsDroppedAndHarmsNobody) {
  TcpWorld w(2);
  const auto a = w.join(0);
  TcpStoreOptions stranger = w.options_of(1);
  stranger.token = random_job_token();
  const Error e = error_of(ErrorCode::timeout, [&] { connect_store(stranger, in_ms(120)); });
  EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 1"), HasSubstr(stranger.endpoint), HasSubstr("another token")));
  EXPECT_EQ(e.rank(), 1);
  EXPECT_GT(w.server().dropped_hellos(), 0U);
  const auto b = w.join(1);
  b->set("key", "value", soon());
  EXPECT_EQ(a->get("key", soon()), "value");
}

TEST(TcpStore, TheServerChecksWhatAHelloClaims) {
  TcpWorld w(2);
  const JobToken token = w.options_of(0).token;
  for (const std::int32_t rank : {-1, 2, 2147483647, -2147483647 - 1}) {
    const wire::Message answer = answer_to(w, {wire::version, token, rank, 2});
    EXPECT_EQ(answer.kind, wire::Kind::refused);
    EXPECT_THAT(answer.value, HasSubstr("rank " + std::to_string(rank)));
  }
  const wire::Message answer = answer_to(w, {wire::version + 1, token, 0, 2});
  EXPECT_EQ(answer.kind, wire::Kind::refused);
  EXPECT_EQ(answer.number, static_cast<std::int64_t>(ErrorCode::version_mismatch));
  EXPECT_EQ(w.server().dropped_hellos(), 0U);
  EXPECT_THAT(w.server().missing_ranks(), ElementsAre(0, 1));
}

TEST(TcpStore, ARefusalForTheVersionIsVersionMismatch) {
  const RawSocket listener = RawSocket::listen();
  std::thread server([&] {
    const RawSocket s = listener.accept();
    s.receive(wire::hello_bytes);
    s.send(wire::frame(
        {wire::Kind::refused, 0, static_cast<std::int64_t>(ErrorCode::version_mismatch), {}, "the server is older"}));
    s.closed_by_peer();
  });
  TcpStoreOptions options;
  options.endpoint = "127.0.0.1:" + std::to_string(listener.port());
  const Error e = error_of(ErrorCode::version_mismatch, [&] { connect_store(options, soon()); });
  EXPECT_THAT(e.what(), HasSubstr("the server is older"));
  server.join();
}

TEST(TcpStore, ServersOfOtherKindsAreReportedInTime) {
  const struct {
    const char* answer;
    const char* reason;
  } cases[] = {{"", "did not answer"},
               {"HTTP/1.1 400 Bad Request\r\n\r\n", "not that of a store server"},
               {"\x15\0\0\0\x7f", "did not answer"}};
  for (const auto& c : cases) {
    const RawSocket listener = RawSocket::listen();
    std::atomic<bool> done = false;
    std::thread server([&] {
      while (!done) {
        const RawSocket s = listener.accept();
        if (done) break;
        s.send(c.answer);
        s.closed_by_peer();
      }
    });
    TcpStoreOptions options;
    options.endpoint = "127.0.0.1:" + std::to_string(listener.port());
    const Error e = error_of(ErrorCode::timeout, [&] { connect_store(options, in_ms(100)); });
    EXPECT_THAT(e.what(), HasSubstr(c.reason));
    done = true;
    RawSocket::connect(listener.port());
    server.join();
  }
}

TEST(TcpStore, AnUnreachableServerIsATimeoutThatSaysWhatWasTried) {
  std::uint16_t port = 0;
  {
    const RawSocket listener = RawSocket::listen();
    port = listener.port();
  }
  TcpStoreOptions options;
  options.endpoint = "127.0.0.1:" + std::to_string(port);
  options.rank = 1;
  options.size = 2;
  const auto begin = Deadline::Clock::now();
  const Error e = error_of(ErrorCode::timeout, [&] { connect_store(options, in_ms(100)); });
  EXPECT_LT(Deadline::Clock::now() - begin, testing::promptly);
  EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 1"), HasSubstr(options.endpoint), HasSubstr("refused")));
}

TEST(TcpStore, AnUnknownHostIsATimeoutThatNamesIt) {
  TcpStoreOptions options;
  options.endpoint = "no-such-host.invalid:1234";
  const auto begin = Deadline::Clock::now();
  const Error e = error_of(ErrorCode::timeout, [&] { connect_store(options, in_ms(200)); });
  EXPECT_LT(Deadline::Clock::now() - begin, testing::promptly);
  EXPECT_THAT(e.what(), HasSubstr("no-such-host.invalid"));
}

TEST(TcpStore, AClientMayComeBeforeItsServer) {
  std::uint16_t port = 0;
  {
    const RawSocket reserved = RawSocket::listen();
    port = reserved.port();
  }
  TcpStoreOptions options;
  options.endpoint = "localhost:" + std::to_string(port);
  auto joining = std::async(std::launch::async, [&] { return connect_store(options, soon()); });
  EXPECT_EQ(joining.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  StoreServerOptions server_options;
  server_options.port = port;
  const auto server = StoreServer::start(server_options);
  const auto store = joining.get();
  store->set("key", "value", soon());
}

TEST(TcpStore, BadOptionsAreInvalidArguments) {
  for (const char* endpoint : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "::1:80", "[::1:80"}) {
    TcpStoreOptions options;
    options.endpoint = endpoint;
    error_of(ErrorCode::invalid_argument, [&] { connect_store(options, in_ms(50)); });
  }
  TcpStoreOptions options;
  options.endpoint = "127.0.0.1:9";
  options.size = 0;
  error_of(ErrorCode::invalid_argument, [&] { connect_store(options, in_ms(50)); });
  options.size = 2;
  options.rank = 2;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { connect_store(options, in_ms(50)); }).what(),
              HasSubstr("rank 2"));
  StoreServerOptions server;
  server.size = 0;
  error_of(ErrorCode::invalid_argument, [&] { StoreServer::start(server); });
  server.size = 1;
  server.address = "not-an-address";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { StoreServer::start(server); }).what(),
              HasSubstr("not-an-address"));
}

TEST(TcpStore, ABoundPortIsATransportErrorThatNamesIt) {
  TcpWorld w(1);
  for (const char* address : {"127.0.0.1", ""}) {
    StoreServerOptions options;
    options.address = address;
    options.port = w.server().port();
    const Error e = error_of(ErrorCode::transport, [&] { StoreServer::start(options); });
    EXPECT_THAT(e.what(), AllOf(HasSubstr(std::to_string(options.port)), HasSubstr("in use")));
  }
}

TEST(TcpStore, IPv6Loopback) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  TcpWorld w(2, "::1");
  const auto a = w.join(0), b = w.join(1);
  a->set("key", "value", soon());
  EXPECT_EQ(b->get("key", soon()), "value");
}

TEST(TcpStore, TheEmptyAddressServesIPv4AndIPv6) {
  StoreServerOptions server_options;
  server_options.size = 2;
  const auto server = StoreServer::start(server_options);
  TcpStoreOptions options;
  options.size = 2;
  options.endpoint = "127.0.0.1:" + std::to_string(server->port());
  const auto v4 = connect_store(options, soon());
  v4->set("key", "value", soon());
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  options.rank = 1;
  options.endpoint = "[::1]:" + std::to_string(server->port());
  const auto v6 = connect_store(options, soon());
  EXPECT_EQ(v6->get("key", soon()), "value");
}

TEST(TcpStore, TheEndOfTheServerFailsPendingCallsAtOnce) {
  TcpWorld w(2);
  TcpStoreOptions options = w.options_of(1);
  options.server_rank = 0;
  const auto s = connect_store(options, soon());
  NoticeLog log;
  const auto handle = s->listen(log.listener());
  auto waiting = std::async(std::launch::async, [&] { s->get("never", soon()); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  const auto begin = Deadline::Clock::now();
  w.server().stop();
  const Error e = error_of(ErrorCode::peer_failed, [&] { waiting.get(); });
  EXPECT_THAT(e.what(), AllOf(HasSubstr("store server"), HasSubstr(options.endpoint), HasSubstr("is gone")));
  EXPECT_EQ(e.rank(), 0);
  error_of(ErrorCode::peer_failed, [&] { s->set("k", "v", soon()); });
  error_of(ErrorCode::peer_failed, [&] { s->leave(soon()); });
  EXPECT_LT(Deadline::Clock::now() - begin, testing::promptly);
  EXPECT_THAT(log.wait_for(Kind::peer_lost, 0).reason, HasSubstr("is gone"));
}

TEST(TcpStore, AServerThatFallsSilentIsGone) {
  const RawSocket listener = RawSocket::listen();
  std::promise<void> release;
  std::thread server([&] {
    const RawSocket s = listener.accept();
    s.receive(wire::hello_bytes);
    s.send(wire::frame({wire::Kind::welcome, 0, 200, {}, {}}));
    release.get_future().wait();
  });
  TcpStoreOptions options;
  options.endpoint = "127.0.0.1:" + std::to_string(listener.port());
  options.heartbeat_timeout = std::chrono::milliseconds(200);
  const auto s = connect_store(options, soon());
  const Error e = error_of(ErrorCode::peer_failed, [&] { s->get("key", soon()); });
  EXPECT_THAT(e.what(), HasSubstr("nothing was heard from it for 200 ms"));
  release.set_value();
  server.join();
}

TEST(TcpStore, AClientThatFallsSilentIsLost) {
  TcpWorld w(2, "127.0.0.1", std::chrono::milliseconds(600));
  const auto a = w.join(0);
  NoticeLog log;
  const auto handle = a->listen(log.listener());
  const RawSocket silent = RawSocket::connect(w.server().port());
  ASSERT_TRUE(silent.send(wire::encode(wire::Hello{wire::version, w.options_of(1).token, 1, 2})));
  EXPECT_THAT(log.wait_for(Kind::peer_lost, 1).reason, HasSubstr("nothing was heard from it for 600 ms"));
  EXPECT_TRUE(silent.closed_by_peer());
  a->set("key", "value", soon());  // heartbeats kept rank 0
}

TEST(TcpStore, ATimedOutGetIsForgottenByTheServer) {
  TcpWorld w(1);
  const auto s = w.join(0);
  for (int i = 0; i < 20; ++i) error_of(ErrorCode::timeout, [&] { s->get("key", in_ms(1)); });
  s->set("key", "value", soon());
  EXPECT_EQ(s->get("key", soon()), "value");
}

TEST(TcpStore, ATooLargeValueIsAnInvalidArgument) {
  TcpWorld w(1);
  const auto s = w.join(0);
  const std::string value(wire::max_payload, 'x');
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { s->set("key", value, soon()); }).what(), HasSubstr("key"));
  s->set("key", "small", soon());
}

TEST(TcpStore, TheServersRankLeavesLast) {
  TcpWorld w(3);
  TcpStoreOptions serving = w.options_of(0);
  serving.server = w.shared_server();
  const auto first = connect_store(serving, soon());
  const auto a = w.join(1);
  auto leaving = std::async(std::launch::async, [&] { first->leave(soon()); });
  NoticeLog log;
  const auto handle = a->listen(log.listener());
  log.wait_for(Kind::left, 0);
  const auto b = w.join(2);
  EXPECT_EQ(leaving.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  a->set("key", "still served", soon());
  EXPECT_EQ(b->get("key", soon()), "still served");
  a->leave(soon());
  EXPECT_EQ(leaving.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  b->leave(soon());
  leaving.get();
  EXPECT_TRUE(w.server().wait_all_left(in_ms(0)));
  // What the others heard of each other's leaving is no failure.
  for (const Store::Notice& n : log.all()) EXPECT_EQ(n.kind, Kind::left);
}

TEST(TcpStore, TheServersRankDoesNotWaitForTheLostNorBeyondItsDeadline) {
  TcpWorld w(3);
  TcpStoreOptions serving = w.options_of(0);
  serving.server = w.shared_server();
  const auto first = connect_store(serving, soon());
  EXPECT_THAT(w.server().missing_ranks(), ElementsAre(1, 2));
  w.join(1);
  auto b = w.join(2);
  EXPECT_THAT(w.server().missing_ranks(), IsEmpty());
  first->leave(in_ms(150));
  EXPECT_FALSE(w.server().wait_all_left(in_ms(0)));
  b.reset();
  EXPECT_TRUE(w.server().wait_all_left(soon()));
}

TEST(TcpStore, LeavingWorksInAnyOrderAndAllAtOnce) {
  for (int round = 0; round < 10; ++round) {
    TcpWorld w(4);
    std::vector<std::thread> ranks;
    for (int r = 0; r < 4; ++r) {
      TcpStoreOptions options = w.options_of(r);
      if (r == 0) options.server = w.shared_server();
      ranks.emplace_back([options, round] {
        NoticeLog log;
        const auto s = connect_store(options, soon());
        const auto handle = s->listen(log.listener());
        // All arrive before the first leaves.
        if (s->add("arrived", 1, soon()) == 4) s->set("go", "", soon());
        s->get("go", soon());
        EXPECT_NO_THROW(s->leave(soon())) << "rank " << options.rank << " round " << round;
        for (const Store::Notice& n : log.all()) EXPECT_EQ(n.kind, Kind::left) << n.reason;
        if (options.server) options.server->stop();
      });
    }
    for (auto& t : ranks) t.join();
  }
}

TEST(TcpStore, StopMayBeCalledTwiceAndWakesAWaiter) {
  TcpWorld w(2);
  auto waiting = std::async(std::launch::async, [&] { return w.server().wait_all_left(soon()); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  w.server().stop();
  EXPECT_FALSE(waiting.get());
  w.server().stop();
}

}  // namespace
}  // namespace tandem

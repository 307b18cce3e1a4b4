// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "bootstrap/rendezvous.hpp"
#include "multiprocess/bootstrap/child.hpp"
#include "unit/bootstrap/raw_socket.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::NoticeLog;
using testing::soon;
using testing::TcpWorld;
using Kind = Store::Notice::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds patient{60000};  // heartbeats play no part
constexpr milliseconds brisk{600};

// What a child needs to join, as one line.
std::string invitation(const TcpWorld& w) {
  return w.options_of(0).endpoint + " " + to_hex(w.options_of(0).token) + " " + std::to_string(w.options_of(0).size);
}

std::shared_ptr<Store> accept_invitation(const std::string& line, int rank, milliseconds heartbeat_timeout) {
  TcpStoreOptions options;
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  options.endpoint = line.substr(0, first);
  options.token = job_token_from_hex(line.substr(first + 1, second - first - 1));
  options.size = std::stoi(line.substr(second + 1));
  options.rank = rank;
  options.heartbeat_timeout = heartbeat_timeout;
  options.server_rank = 0;
  return connect_store(options, soon());
}

// Joins, says so, and reports the first peer_lost: "<rank> <reason>".
int report_first_loss(Child::Parent parent, int rank, milliseconds heartbeat_timeout) {
  const auto store = accept_invitation(parent.receive(), rank, heartbeat_timeout);
  const auto handle = store->listen([&](const Store::Notice& n) {
    if (n.kind == Kind::peer_lost) parent.send(std::to_string(n.rank) + " " + n.reason);
  });
  parent.send("joined");
  return parent.receive() == "leave" ? (store->leave(soon()), 0) : 1;
}

TEST(PeerDeath, SigkillOfOneRankIsToldToAllOthersByName) {
  Child victim([](Child::Parent p) { return report_first_loss(p, 2, patient); });
  Child survivor([](Child::Parent p) { return report_first_loss(p, 1, patient); });
  TcpWorld w(3, "127.0.0.1", patient);
  const auto store = w.join(0);
  NoticeLog log;
  const auto handle = store->listen(log.listener());
  for (const Child* c : {&victim, &survivor}) c->send(invitation(w));
  for (const Child* c : {&victim, &survivor}) ASSERT_EQ(c->receive(), "joined");
  const auto begin = Deadline::Clock::now();
  victim.kill(SIGKILL);
  log.wait_for(Kind::peer_lost, 2);
  EXPECT_THAT(survivor.receive(), ::testing::StartsWith("2 "));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(5));
  survivor.send("leave");
  EXPECT_EQ(survivor.reap(), 0);
  EXPECT_EQ(victim.reap(), 128 + SIGKILL);
  log.wait_for(Kind::left, 1);
}

TEST(PeerDeath, SigkillWhileOthersWaitForItsKeyLeavesThemAnswerable) {
  Child victim([](Child::Parent p) {
    const auto store = accept_invitation(p.receive(), 1, patient);
    store->set("victim", "here", soon());
    store->get("never", soon());
    return 1;
  });
  TcpWorld w(2, "127.0.0.1", patient);
  const auto store = w.join(0);
  victim.send(invitation(w));
  store->get("victim", soon());
  // What a communicator does: the loss ends the wait.
  const auto handle = store->listen([&](const Store::Notice&) { store->close(); });
  std::thread killer([&] { victim.kill(SIGKILL); });
  testing::error_of(ErrorCode::aborted, [&] { store->get("of the victim", soon()); });
  killer.join();
}

TEST(PeerDeath, AStoppedRankIsLostAndLearnsOfItWhenItWakes) {
  Child sleeper([](Child::Parent p) {
    const auto store = accept_invitation(p.receive(), 2, brisk);
    NoticeLog log;
    const auto handle = store->listen(log.listener());
    p.send("joined");
    try {
      store->get("never", soon());
    } catch (const Error& e) {
      p.send(e.what());
      return e.code() == ErrorCode::peer_failed ? 0 : 2;
    }
    return 1;
  });
  Child survivor([](Child::Parent p) { return report_first_loss(p, 1, brisk); });
  TcpWorld w(3, "127.0.0.1", brisk);
  const auto store = w.join(0);
  NoticeLog log;
  const auto handle = store->listen(log.listener());
  for (const Child* c : {&sleeper, &survivor}) c->send(invitation(w));
  for (const Child* c : {&sleeper, &survivor}) ASSERT_EQ(c->receive(), "joined");
  sleeper.kill(SIGSTOP);
  EXPECT_THAT(log.wait_for(Kind::peer_lost, 2).reason, HasSubstr("nothing was heard from it"));
  EXPECT_THAT(survivor.receive(), ::testing::StartsWith("2 nothing was heard"));
  sleeper.kill(SIGCONT);
  EXPECT_THAT(sleeper.receive(), HasSubstr("counts rank 2 as lost"));
  EXPECT_EQ(sleeper.reap(), 0);
  survivor.send("leave");
  EXPECT_EQ(survivor.reap(), 0);
}

// Rank 0 with its server in a process of its own; the test is rank 1.
int serve(Child::Parent p, milliseconds heartbeat_timeout) {
  TcpWorld w(2, "127.0.0.1", heartbeat_timeout);
  const auto store = w.join(0);
  p.send(invitation(w));
  p.receive();
  return 0;
}

TEST(PeerDeath, SigkillOfTheServersRankNamesIt) {
  Child server([](Child::Parent p) { return serve(p, patient); });
  const auto store = accept_invitation(server.receive(), 1, patient);
  NoticeLog log;
  const auto handle = store->listen(log.listener());
  std::thread killer([&] { server.kill(SIGKILL); });
  const Error e = testing::error_of(ErrorCode::peer_failed, [&] { store->get("never", soon()); });
  EXPECT_EQ(e.rank(), 0);
  EXPECT_THAT(e.what(), HasSubstr("store server"));
  log.wait_for(Kind::peer_lost, 0);
  killer.join();
}

TEST(PeerDeath, AStoppedServerIsNoticed) {
  Child server([](Child::Parent p) { return serve(p, brisk); });
  const auto store = accept_invitation(server.receive(), 1, brisk);
  server.kill(SIGSTOP);
  const Error e = testing::error_of(ErrorCode::peer_failed, [&] { store->get("never", soon()); });
  EXPECT_THAT(e.what(), HasSubstr("nothing was heard from it"));
}

TEST(PeerDeath, APauseOfTheServerIsForgiven) {
  Child server([](Child::Parent p) { return serve(p, brisk); });
  const auto store = accept_invitation(server.receive(), 1, patient);
  NoticeLog log;
  const auto handle = store->listen(log.listener());
  server.kill(SIGSTOP);
  std::this_thread::sleep_for(2 * brisk);  // long enough for every rank to look silent by the clock
  server.kill(SIGCONT);
  store->set("key", "value", soon());
  EXPECT_EQ(store->get("key", soon()), "value");
  EXPECT_TRUE(log.all().empty());
}

TEST(Processes, MeetByMasterAddrAndLeaveInOrder) {
  const int port = testing::RawSocket::listen().port();
  std::vector<Child> ranks;
  for (int r = 0; r < 4; ++r) {
    ranks.emplace_back([r, port](Child::Parent) {
      Env env;
      env.master_addr = "127.0.0.1";
      env.master_port = port;
      env.rank = r;
      env.world_size = 4;
      const auto m = detail::rendezvous_from_environment(env, seconds(20));
      NoticeLog log;
      const auto handle = m.store->listen(log.listener());
      m.store->set(std::to_string(r), "here", soon());
      for (int other = 0; other < 4; ++other) m.store->get(std::to_string(other), soon());
      m.store->leave(soon());
      for (const Store::Notice& n : log.all()) {
        if (n.kind != Kind::left) return 2;
      }
      return 0;
    });
  }
  for (Child& c : ranks) EXPECT_EQ(c.reap(), 0);
}

TEST(Processes, TwoRanksWithOneNumberAreToldSo) {
  const int port = testing::RawSocket::listen().port();
  const auto rank = [port](int r) {
    return [r, port](Child::Parent p) {
      Env env;
      env.master_addr = "127.0.0.1";
      env.master_port = port;
      env.rank = r;
      env.world_size = 3;
      try {
        const auto m = detail::rendezvous_from_environment(env, seconds(20));
        p.send("joined");
        p.receive();
      } catch (const Error& e) {
        p.send(e.what());
        return 3;
      }
      return 0;
    };
  };
  Child zero(rank(0)), one(rank(1)), twin(rank(1));
  EXPECT_EQ(zero.receive(), "joined");
  const std::string a = one.receive(), b = twin.receive();
  EXPECT_EQ((a == "joined") + (b == "joined"), 1) << a << " / " << b;
  EXPECT_THAT(a == "joined" ? b : a, HasSubstr("rank 1 is taken"));
}

}  // namespace
}  // namespace tandem

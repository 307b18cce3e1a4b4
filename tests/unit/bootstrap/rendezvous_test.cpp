// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "unit/bootstrap/raw_socket.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem::detail {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::RawSocket;
using testing::soon;

Env launched(const testing::TcpWorld& w, int rank, int size) {
  Env env;
  env.store = w.options_of(rank).endpoint + "/" + to_hex(w.options_of(rank).token);
  env.rank = rank;
  env.world_size = size;
  return env;
}

Env torchrun(int rank, int size, int port) {
  Env env;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  env.rank = rank;
  env.world_size = size;
  env.run_id = "job";
  return env;
}

// A port that was free a moment ago: MASTER_PORT cannot be left to the system.
int free_port() { return RawSocket::listen().port(); }

TEST(Rendezvous, WithoutSettingsAProcessIsAlone) {
  const Membership m = rendezvous_from_environment(Env{});
  EXPECT_EQ(m.rank, 0);
  EXPECT_EQ(m.size, 1);
  EXPECT_EQ(m.store, nullptr);
}

TEST(Rendezvous, TandemStore) {
  testing::TcpWorld w(2);
  const Membership a = rendezvous_from_environment(launched(w, 0, 2));
  Env env = launched(w, 1, 2);
  env.master_addr = "no-such-host.invalid";  // TANDEM_STORE comes first
  const Membership b = rendezvous_from_environment(env);
  EXPECT_EQ(b.rank, 1);
  EXPECT_EQ(b.size, 2);
  a.store->set("key", "value", soon());
  EXPECT_EQ(b.store->get("key", soon()), "value");
}

TEST(Rendezvous, TandemStoreOverIPv6) {
  std::unique_ptr<testing::TcpWorld> w;
  try {
    w = std::make_unique<testing::TcpWorld>(1, "::1");
  } catch (const Error& e) {
    GTEST_SKIP() << "this machine has no IPv6 loopback: " << e.what();
  }
  const Membership m = rendezvous_from_environment(launched(*w, 0, 1));
  m.store->set("key", "value", soon());
}

TEST(Rendezvous, ABadTandemStoreIsAnErrorThatNamesIt) {
  for (const char* text :
       {"127.0.0.1:1", "127.0.0.1:1/", "127.0.0.1:1/abc", "127.0.0.1/00112233445566778899aabbccddeeff",
        "/00112233445566778899aabbccddeeff", "127.0.0.1:1/00112233445566778899aabbccddeefg"}) {
    Env env;
    env.store = text;
    env.rank = 0;
    env.world_size = 1;
    EXPECT_THAT(
        error_of(ErrorCode::invalid_argument, [&] { rendezvous_from_environment(env, milliseconds(50)); }).what(),
        HasSubstr("TANDEM_STORE"));
  }
}

TEST(Rendezvous, MasterAddrAndPort) {
  const int port = free_port();
  std::vector<std::future<void>> ranks;
  for (int r = 2; r >= 0; --r) {
    ranks.push_back(std::async(std::launch::async, [r, port] {
      const Membership m = rendezvous_from_environment(torchrun(r, 3, port), std::chrono::seconds(20));
      EXPECT_EQ(m.rank, r);
      EXPECT_EQ(m.size, 3);
      m.store->set(std::to_string(r), "here", soon());
      for (int other = 0; other < 3; ++other) m.store->get(std::to_string(other), soon());
      m.store->leave(soon());
    }));
  }
  for (auto& f : ranks) f.get();
}

// By MASTER_ADDR, ranks are refused for their size; rank 0 hears of it.
void expect_size_conflict(int port, int rank, int size, Store& zero, int zero_size) {
  const auto conflict = HasSubstr("rank " + std::to_string(rank) + " was started with WORLD_SIZE " +
                                  std::to_string(size) + ", rank 0 with " + std::to_string(zero_size));
  const Error e = error_of(ErrorCode::invalid_argument,
                           [&] { rendezvous_from_environment(torchrun(rank, size, port), std::chrono::seconds(5)); });
  EXPECT_THAT(e.what(), AllOf(conflict, HasSubstr("127.0.0.1:" + std::to_string(port))));
  EXPECT_EQ(e.rank(), rank);
  testing::NoticeLog log;
  const auto handle = zero.listen(log.listener());
  const auto begin = Deadline::Clock::now();
  EXPECT_THAT(log.wait_for(Store::Notice::Kind::peer_lost, rank).reason, conflict);
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(5));
}

TEST(Rendezvous, AnotherWorldSizeIsToldOnBothSides) {
  for (const auto& [size, zero_size] : {std::pair(4, 3), std::pair(2, 3), std::pair(3, 2)}) {
    const int port = free_port();
    const Membership zero = rendezvous_from_environment(torchrun(0, zero_size, port), std::chrono::seconds(20));
    expect_size_conflict(port, 1, size, *zero.store, zero_size);
  }
}

TEST(Rendezvous, AnotherWorldSizeUnderTandemStoreIsToldOnBothSides) {
  testing::TcpWorld w(3);
  const Membership zero = rendezvous_from_environment(launched(w, 0, 3));
  const auto conflict = HasSubstr("rank 1 was started for a job of 4 ranks, the store server for one of 3");
  const Error e = error_of(ErrorCode::invalid_argument, [&] { rendezvous_from_environment(launched(w, 1, 4)); });
  EXPECT_THAT(e.what(), AllOf(conflict, HasSubstr("TANDEM_STORE, RANK 1 and WORLD_SIZE 4")));
  EXPECT_EQ(e.rank(), 1);
  testing::NoticeLog log;
  const auto handle = zero.store->listen(log.listener());
  EXPECT_THAT(log.wait_for(Store::Notice::Kind::peer_lost, 1).reason, conflict);
}

// Another job's rank that finds this one's server: another run, or another MASTER_PORT that was forwarded here.
TEST(Rendezvous, ARankOfAnotherJobIsAStrangerWhateverItsSize) {
  const int port = free_port();
  const Membership zero = rendezvous_from_environment(torchrun(0, 2, port), std::chrono::seconds(20));
  testing::NoticeLog log;
  const auto handle = zero.store->listen(log.listener());
  for (const int size : {2, 4}) {
    Env other = torchrun(1, size, port);
    other.run_id = "another job";
    const Error e = error_of(ErrorCode::timeout, [&] { rendezvous_from_environment(other, milliseconds(100)); });
    EXPECT_THAT(e.what(), AllOf(HasSubstr("another token"), HasSubstr("MASTER_PORT and TORCHELASTIC_RUN_ID")));
    const Env elsewhere = torchrun(1, size, free_port());
    Env here = elsewhere;
    here.store = "127.0.0.1:" + std::to_string(port) + "/" +
                 to_hex(job_token_from(std::to_string(*elsewhere.master_port) + "/job"));
    error_of(ErrorCode::timeout, [&] { rendezvous_from_environment(here, milliseconds(100)); });
  }
  const Membership one = rendezvous_from_environment(torchrun(1, 2, port), std::chrono::seconds(20));
  one.store->set("key", "value", soon());
  EXPECT_EQ(zero.store->get("key", soon()), "value");
  EXPECT_THAT(log.all(), ::testing::IsEmpty());
}

TEST(Rendezvous, ALonelyRankNeedsNoPort) {
  const RawSocket taken = RawSocket::listen();
  const Membership m = rendezvous_from_environment(torchrun(0, 1, taken.port()));
  EXPECT_EQ(m.size, 1);
  EXPECT_EQ(m.store, nullptr);
}

TEST(Rendezvous, ATakenMasterPortIsExplained) {
  const RawSocket agent = RawSocket::listen();
  for (const char* host : {"127.0.0.1", "localhost"}) {
    Env env = torchrun(0, 2, agent.port());
    env.master_addr = host;
    const Error e = error_of(ErrorCode::transport, [&] { rendezvous_from_environment(env, milliseconds(100)); });
    EXPECT_THAT(e.what(), AllOf(HasSubstr("torchrun"), HasSubstr("TANDEM_STORE"), HasSubstr("another MASTER_PORT"),
                                HasSubstr(std::to_string(agent.port()))));
    EXPECT_EQ(e.rank(), 0);
  }
}

TEST(Rendezvous, AMissingServerNamesRankAndEndpoint) {
  const int port = free_port();
  const Error e =
      error_of(ErrorCode::timeout, [&] { rendezvous_from_environment(torchrun(1, 2, port), milliseconds(100)); });
  // Rank 0 may be up, and think that it is alone.
  EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 1"), HasSubstr("127.0.0.1:" + std::to_string(port)),
                              HasSubstr("unless its WORLD_SIZE is 1")));
  EXPECT_EQ(e.rank(), 1);
}

TEST(Rendezvous, PartialSettingsNameWhatIsMissing) {
  const Env whole = torchrun(1, 2, 29500);
  const auto missing = [](const Env& env) {
    return std::string(
        error_of(ErrorCode::invalid_argument, [&] { rendezvous_from_environment(env, milliseconds(50)); }).what());
  };
  Env env = whole;
  env.rank.reset();
  EXPECT_THAT(missing(env), HasSubstr("RANK is not set"));
  env = whole;
  env.world_size.reset();
  EXPECT_THAT(missing(env), HasSubstr("WORLD_SIZE is not set"));
  env = whole;
  env.master_addr.reset();
  EXPECT_THAT(missing(env), HasSubstr("MASTER_ADDR is not set"));
  env = whole;
  env.master_port.reset();
  EXPECT_THAT(missing(env), HasSubstr("MASTER_PORT is not set"));
  env = Env{};
  env.world_size = 2;
  EXPECT_THAT(missing(env), HasSubstr("RANK is not set, but WORLD_SIZE is"));
  env = whole;
  env.store = "127.0.0.1:1/00112233445566778899aabbccddeeff";
  env.rank.reset();
  EXPECT_THAT(missing(env), HasSubstr("RANK is not set, but TANDEM_STORE is"));
  env = whole;
  env.store = "127.0.0.1:1/00112233445566778899aabbccddeeff";
  env.world_size.reset();
  EXPECT_THAT(missing(env), HasSubstr("WORLD_SIZE is not set, but TANDEM_STORE is"));
}

TEST(Rendezvous, ARankOutsideTheWorldIsAnError) {
  for (const auto& [rank, size] : {std::pair(2, 2), std::pair(-1, 2), std::pair(0, 0)}) {
    const Error e = error_of(ErrorCode::invalid_argument, [r = rank, s = size] {
      rendezvous_from_environment(torchrun(r, s, 29500), milliseconds(50));
    });
    EXPECT_THAT(e.what(),
                AllOf(HasSubstr("RANK is " + std::to_string(rank)), HasSubstr("WORLD_SIZE " + std::to_string(size))));
    Env env = torchrun(rank, size, 29500);
    env.store = "127.0.0.1:1/00112233445566778899aabbccddeeff";
    const Error launched =
        error_of(ErrorCode::invalid_argument, [&] { rendezvous_from_environment(env, milliseconds(50)); });
    EXPECT_THAT(launched.what(), HasSubstr("RANK is " + std::to_string(rank)));
  }
  for (const int port : {0, -1, 70000}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                         [&] { rendezvous_from_environment(torchrun(1, 2, port), milliseconds(50)); })
                    .what(),
                HasSubstr("MASTER_PORT"));
  }
}

}  // namespace
}  // namespace tandem::detail

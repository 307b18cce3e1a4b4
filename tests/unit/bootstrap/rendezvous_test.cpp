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
  EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 1"), HasSubstr("127.0.0.1:" + std::to_string(port))));
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
}

TEST(Rendezvous, ARankOutsideTheWorldIsAnError) {
  for (const auto& [rank, size] : {std::pair(2, 2), std::pair(-1, 2), std::pair(0, 0)}) {
    const Error e = error_of(ErrorCode::invalid_argument, [r = rank, s = size] {
      rendezvous_from_environment(torchrun(r, s, 29500), milliseconds(50));
    });
    EXPECT_THAT(e.what(), AllOf(HasSubstr("RANK"), HasSubstr("WORLD_SIZE")));
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

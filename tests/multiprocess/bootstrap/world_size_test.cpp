// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "multiprocess/bootstrap/child.hpp"
#include "tandem/communicator.hpp"
#include "unit/bootstrap/raw_socket.hpp"

namespace tandem {
namespace {

using testing::Child;
using ::testing::HasSubstr;

// A rank that is started by hand, with what its user sees.
Child started(int rank, int world_size, int port) {
  return Child([=](Child::Parent p) {
    ::unsetenv("TANDEM_STORE");
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
    try {
      CommunicatorOptions options;
      options.rendezvous_timeout = std::chrono::seconds(15);
      Communicator::from_environment(options);
      p.send("met");
    } catch (const Error& e) {
      p.send(e.what());
    }
    return 0;
  });
}

TEST(WorldSize, RanksThatDifferInItAreBothToldSoLongBeforeTheDeadline) {
  for (const auto& [zero_size, size] : {std::pair(3, 4), std::pair(4, 3)}) {
    const int port = testing::RawSocket::listen().port();
    const auto begin = Deadline::Clock::now();
    Child zero = started(0, zero_size, port), one = started(1, size, port);
    const auto conflict = HasSubstr("rank 1 was started with WORLD_SIZE " + std::to_string(size) + ", rank 0 with " +
                                    std::to_string(zero_size));
    EXPECT_THAT(one.receive(), conflict);
    EXPECT_THAT(zero.receive(), conflict);
    EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(10));
    EXPECT_EQ(zero.reap() + one.reap(), 0);
  }
}

}  // namespace
}  // namespace tandem

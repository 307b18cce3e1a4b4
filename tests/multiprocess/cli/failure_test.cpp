// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <regex>
#include <thread>

#include "run_command.hpp"
#include "support/promptly.hpp"
#include "support/random.hpp"

/// Ranks that die, never come, or should not be there: the others say who, in time, and nothing stays behind.
namespace tandem::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// A port that nobody listens on; free a moment ago.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

std::vector<std::string> rank_environment(int rank, int size, int port) {
  return {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size), "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port)};
}

std::vector<std::string> quick_dsa() {
  return tandem_command({"dsa", "--seq-len", "64", "--timeout", "2", "--rendezvous-timeout", "2"});
}

// "rank 1" as such, not as part of "rank 12".
bool names_rank(const std::string& text, int rank) {
  return std::regex_search(text, std::regex("rank(s)? ([0-9]+, )*" + std::to_string(rank) + "([^0-9]|$)"));
}

class Killed : public ::testing::TestWithParam<int> {};

// A long run in three ranks; one is killed after a while that differs from case to case, from before it joined the
// store until well into the operator.
TEST_P(Killed, RankIsNamedByTheOthersInTime) {
  const milliseconds delay(GetParam());
  Running job(
      tandem_command({"dsa", "--ranks", "3", "--seq-len", "20000", "--timeout", "3", "--rendezvous-timeout", "3"}));
  const std::vector<pid_t> ranks = wait_for_children(job.pid(), 3);
  ASSERT_EQ(ranks.size(), 3U);
  std::this_thread::sleep_for(delay);
  std::mt19937_64 rng = test_rng(static_cast<std::uint64_t>(GetParam()));
  const int victim = static_cast<int>(rng() % 3);
  ASSERT_EQ(kill(ranks[static_cast<std::size_t>(victim)], SIGKILL), 0);
  const auto killed = std::chrono::steady_clock::now();
  const Ended e = job.wait();
  const auto took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - killed);
  EXPECT_EQ(e.code, 137) << e.err;
  EXPECT_LT(took, milliseconds(3000) + promptly) << e.err;
  EXPECT_THAT(e.err, HasSubstr("rank " + std::to_string(victim) + " (process"));
  for (int survivor = 0; survivor < 3; ++survivor) {
    if (survivor == victim) continue;
    std::smatch line;
    const std::regex said("tandem: rank " + std::to_string(survivor) + ": ([^\n]*)");
    ASSERT_TRUE(std::regex_search(e.err, line, said)) << "survivor " << survivor << " said nothing:\n" << e.err;
    EXPECT_TRUE(names_rank(line[1], victim)) << e.err;
  }
  for (const pid_t rank : ranks) EXPECT_TRUE(gone(rank, milliseconds(0)));
}
INSTANTIATE_TEST_SUITE_P(After, Killed, ::testing::Values(0, 3, 10, 30, 100, 300, 1000));

TEST(Failure, StoppedRankIsNamedWithinTheHeartbeatTimeout) {
  Running job(
      tandem_command({"dsa", "--ranks", "2", "--seq-len", "20000", "--timeout", "2", "--rendezvous-timeout", "3"}));
  const std::vector<pid_t> ranks = wait_for_children(job.pid(), 2);
  ASSERT_EQ(ranks.size(), 2U);
  std::this_thread::sleep_for(milliseconds(300));
  kill(ranks[1], SIGSTOP);
  const Ended e = job.wait();
  EXPECT_NE(e.code, 0);
  EXPECT_TRUE(names_rank(e.err, 1)) << e.err;
  EXPECT_TRUE(gone(ranks[1], milliseconds(0)));
}

TEST(Failure, MissingPeerIsNamedAtTheRendezvousDeadline) {
  Running rank0(quick_dsa(), rank_environment(0, 3, free_port()));
  const Ended e = rank0.wait();
  EXPECT_EQ(e.code, 1);
  EXPECT_LT(e.took, milliseconds(2000) + promptly);
  EXPECT_THAT(e.err, HasSubstr("tandem: rank 0: "));
  EXPECT_TRUE(names_rank(e.err, 1)) << e.err;
  EXPECT_THAT(e.err, HasSubstr("2")) << e.err;
}

TEST(Failure, UnreachableStoreIsNamed) {
  const int port = free_port();
  Running rank1(quick_dsa(), {"RANK=1", "WORLD_SIZE=2",
                              "TANDEM_STORE=127.0.0.1:" + std::to_string(port) + "/00112233445566778899aabbccddeeff"});
  const Ended e = rank1.wait();
  EXPECT_EQ(e.code, 1);
  EXPECT_LT(e.took, milliseconds(2000) + promptly);
  EXPECT_THAT(e.err, HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(e.err, HasSubstr("rank 1"));
}

TEST(Failure, GarbledStoreAddressIsRefused) {
  for (const char* store : {"nonsense", "127.0.0.1:99/xyz", "127.0.0.1/00112233445566778899aabbccddeeff"}) {
    const Ended e = Running(quick_dsa(), {"RANK=1", "WORLD_SIZE=2", std::string("TANDEM_STORE=") + store}).wait();
    EXPECT_EQ(e.code, 1) << store;
    EXPECT_THAT(e.err, HasSubstr("TANDEM_STORE")) << store;
  }
}

TEST(Failure, TwoRanksWithOneNumber) {
  const int port = free_port();
  Running rank0(quick_dsa(), rank_environment(0, 3, port));
  Running rank1(quick_dsa(), rank_environment(1, 3, port));
  Running twin(quick_dsa(), rank_environment(1, 3, port));
  const Ended one = rank1.wait();
  const Ended two = twin.wait();
  const Ended zero = rank0.wait();
  for (const Ended* e : {&zero, &one, &two}) {
    EXPECT_EQ(e->code, 1) << e->err;
    EXPECT_LT(e->took, milliseconds(2000) + promptly) << e->err;
    EXPECT_THAT(e->err, HasSubstr("rank"));
  }
  EXPECT_TRUE(names_rank(one.err + two.err, 1));
  EXPECT_THAT(one.err + two.err, HasSubstr("taken"));
}

TEST(Failure, DifferentOptionsAreNamed) {
  const int port = free_port();
  Running rank0(quick_dsa(), rank_environment(0, 2, port));
  std::vector<std::string> other = quick_dsa();
  other.insert(other.end(), {"--topk", "9"});
  Running rank1(other, rank_environment(1, 2, port));
  const Ended one = rank1.wait();
  const Ended zero = rank0.wait();
  EXPECT_EQ(zero.code, 1) << zero.err;
  EXPECT_EQ(one.code, 1) << one.err;
  EXPECT_THAT(zero.err + one.err, HasSubstr("version_mismatch"));
}

TEST(Failure, LeavesNoFileWhenItFails) {
  const TemporaryFolder folder;
  Running rank0(
      tandem_command({"dsa", "--seq-len", "64", "--rendezvous-timeout", "0.5", "--trace", folder.path("t.json")}),
      rank_environment(0, 2, free_port()));
  EXPECT_EQ(rank0.wait().code, 1);
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <regex>
#include <thread>

#include "run_command.hpp"
#include "support/promptly.hpp"

namespace tandem::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

Ended launch(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> arguments{"launch"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const std::string& a : {std::string("--"), std::string("sh"), std::string("-c"), script}) arguments.push_back(a);
  return run_tandem(arguments);
}

TEST(Launch, TellsEachRankWhoItIs) {
  const Ended e = launch({"-n", "3"}, "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $TANDEM_STORE");
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(e.err, "");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(e.out, match, std::regex("127\\.0\\.0\\.1:[0-9]+/[0-9a-f]{32}")));
  for (const std::string rank : {"0", "1", "2"}) {
    EXPECT_THAT(e.out, HasSubstr(rank + " 3 " + rank + " 3 " + match.str()));
  }
}

TEST(Launch, TokensDifferFromJobToJob) {
  const std::string script = "echo ${TANDEM_STORE#*/}";
  EXPECT_NE(launch({"-n", "1"}, script).out, launch({"-n", "1"}, script).out);
}

TEST(Launch, TakesTheCommandWithoutDashesAndKeepsItsOptions) {
  const Ended e = run_tandem({"launch", "-n", "1", "sh", "-c", "echo \"$@\"", "x", "--prefix", "-n", "--", "5"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(e.out, "--prefix -n -- 5\n");
}

TEST(Launch, PrefixesLinesAlsoUnfinishedOnes) {
  const Ended e = launch({"-n", "2", "--prefix"}, "printf 'a\\n\\nb'; printf 'oops\\n' >&2");
  ASSERT_EQ(e.code, 0) << e.err;
  for (const std::string rank : {"[0] ", "[1] "}) {
    EXPECT_THAT(e.out, HasSubstr(rank + "a\n"));
    EXPECT_THAT(e.out, HasSubstr(rank + "\n"));
    EXPECT_THAT(e.out, HasSubstr(rank + "b\n"));
    EXPECT_THAT(e.err, HasSubstr(rank + "oops\n"));
  }
}

TEST(Launch, PassesAMegabyteThroughThePrefix) {
  const Ended e = launch({"-n", "1", "--prefix"}, "yes 0123456789abcde | head -n 65536");
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(e.out.size(), 65536U * (16 + 4));
}

TEST(Launch, ReturnsTheCodeOfTheFirstRankThatFailed) {
  const Ended e =
      launch({"-n", "3"}, "if [ $RANK = 1 ]; then exit 42; fi; if [ $RANK = 2 ]; then sleep 0.3; exit 7; fi");
  EXPECT_EQ(e.code, 42);
  EXPECT_THAT(e.err, ::testing::ContainsRegex("rank 1 \\(process [0-9]+\\) exited with code 42"));
  EXPECT_THAT(e.err, ::testing::ContainsRegex("rank 2 \\(process [0-9]+\\) exited with code 7"));
  EXPECT_THAT(e.err, Not(HasSubstr("rank 0")));
}

TEST(Launch, ReportsASignalAs128PlusItsNumber) {
  const Ended e = launch({"-n", "2"}, "[ $RANK = 0 ] || kill -SEGV $$");
  EXPECT_EQ(e.code, 128 + SIGSEGV);
  EXPECT_THAT(e.err, HasSubstr("was killed by signal 11"));
}

// A rank that never joined has no connection to the store whose end the others could notice.
TEST(Launch, TellsTheOthersOfARankThatNeverJoined) {
  const std::string command = TANDEM_COMMAND;
  const Ended e = launch({"-n", "3", "--grace", "20"},
                         "[ $RANK = 1 ] && exit 9; exec " + command + " dsa --seq-len 60 --rendezvous-timeout 15");
  EXPECT_EQ(e.code, 9);
  EXPECT_LT(e.took, milliseconds(10000));
  for (const std::string rank : {"0", "2"}) {
    EXPECT_THAT(e.err, ::testing::ContainsRegex("tandem: rank " + rank + ": .*rank 1 .*exited with code 9"));
  }
}

TEST(Launch, EndsTheOthersAfterTheGracePeriod) {
  const Ended e = launch({"-n", "2", "--grace", "0.2"}, "[ $RANK = 0 ] && exit 3; exec sleep 20");
  EXPECT_EQ(e.code, 3);
  EXPECT_LT(e.took, milliseconds(200) + promptly);
  EXPECT_GE(e.took, milliseconds(200));
  EXPECT_THAT(e.err, HasSubstr("sending it SIGTERM"));
}

TEST(Launch, KillsWhoIgnoresSigterm) {
  const Ended e = launch({"-n", "2", "--grace", "0.1"}, "[ $RANK = 0 ] && exit 3; trap '' TERM; sleep 20");
  EXPECT_EQ(e.code, 3);
  EXPECT_LT(e.took, promptly);
  EXPECT_THAT(e.err, HasSubstr("sending it SIGKILL"));
}

TEST(Launch, LeavesTheOthersTheirGracePeriod) {
  const Ended e = launch({"-n", "2", "--grace", "5"}, "[ $RANK = 0 ] && exit 3; sleep 0.3; echo finished");
  EXPECT_EQ(e.code, 3);
  EXPECT_EQ(e.out, "finished\n");
}

TEST(Launch, KillsWhatARankLeftBehind) {
  const Ended e = launch({"-n", "1"}, "sleep 30 >/dev/null 2>&1 & echo $!");
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_TRUE(gone(std::stoi(e.out), milliseconds(2000)));
}

class LaunchSignal : public ::testing::TestWithParam<int> {};

TEST_P(LaunchSignal, IsPassedOnAndReported) {
  Running job(tandem_command({"launch", "-n", "2", "--", "sleep", "20"}));
  const std::vector<pid_t> ranks = wait_for_children(job.pid(), 2);
  ASSERT_EQ(ranks.size(), 2U);
  job.kill(GetParam());
  const Ended e = job.wait();
  EXPECT_EQ(e.code, 128 + GetParam());
  EXPECT_LT(e.took, promptly);
  for (const pid_t rank : ranks) EXPECT_TRUE(gone(rank, milliseconds(0)));
}
INSTANTIATE_TEST_SUITE_P(All, LaunchSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(Launch, LeavesNoProcessWhenItIsKilled) {
  Running job(tandem_command({"launch", "-n", "3", "--", "sleep", "20"}));
  const std::vector<pid_t> ranks = wait_for_children(job.pid(), 3);
  ASSERT_EQ(ranks.size(), 3U);
  job.kill(SIGKILL);
  EXPECT_EQ(job.wait().code, 137);
  for (const pid_t rank : ranks) EXPECT_TRUE(gone(rank, milliseconds(2000)));
}

TEST(Launch, SaysWhyACommandCannotRun) {
  const Ended missing = run_tandem({"launch", "-n", "2", "no-such-command-here"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("cannot run 'no-such-command-here': not found in PATH"));
  const Ended folder = run_tandem({"launch", "-n", "2", "/"});
  EXPECT_EQ(folder.code, 1);
  EXPECT_THAT(folder.err, HasSubstr("cannot run '/': Permission denied"));
}

struct Bad {
  std::vector<std::string> arguments;
  std::string says;
};
void PrintTo(const Bad& bad, std::ostream* out) {
  for (const std::string& a : bad.arguments) *out << a << ' ';
}
class LaunchUsage : public ::testing::TestWithParam<Bad> {};

TEST_P(LaunchUsage, IsRefused) {
  const Ended e = run_tandem(GetParam().arguments);
  EXPECT_EQ(e.code, 2);
  EXPECT_EQ(e.out, "");
  EXPECT_THAT(e.err, HasSubstr(GetParam().says));
}
INSTANTIATE_TEST_SUITE_P(All, LaunchUsage,
                         ::testing::Values(Bad{{"launch"}, "--ranks"}, Bad{{"launch", "-n"}, "--ranks"},
                                           Bad{{"launch", "-n", "2"}, "no command"},
                                           Bad{{"launch", "-n", "2", "--"}, "no command"},
                                           Bad{{"launch", "-n", "0", "true"}, "--ranks: 0 is too small"},
                                           Bad{{"launch", "-n", "-1", "true"}, "--ranks: -1 is too small"},
                                           Bad{{"launch", "-n", "two", "true"}, "'two' is not a whole number"},
                                           Bad{{"launch", "-n", "2", "--grace", "x", "true"}, "--grace: 'x'"},
                                           Bad{{"launch", "-n", "2", "--unknown", "true"}, "--unknown"}));

}  // namespace
}  // namespace tandem::testing

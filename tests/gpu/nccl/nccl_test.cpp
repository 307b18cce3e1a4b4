// SPDX-License-Identifier: Apache-2.0
// The transport nccl between processes. Over tests/support/fake_nccl they share one GPU; over NCCL itself each rank
// needs its own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "gpu/nccl/scenarios.hpp"
#include "gpu/p2p/comm_scenarios.hpp"
#include "gpu/p2p/world.hpp"
#include "transports/nccl/library.hpp"

namespace tandem::testing_p2p {
namespace {

using ::testing::HasSubstr;

std::string fake_library() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_nccl.so").string();
}

class Nccl : public World {
 protected:
  /// Ranks load this library; `also` comes on top of it.
  void use(const std::string& library, std::vector<std::string> also = {}) {
    also.push_back("TANDEM_TRANSPORT=nccl");
    if (!library.empty()) also.push_back("TANDEM_NCCL_LIBRARY=" + library);
    set_environment(std::move(also));
  }
  void expect_failures(int size, const std::string& numbers, const std::string& text) {
    const auto statuses = run(size, "refused", numbers);
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(statuses[static_cast<std::size_t>(r)], 0) << output(r);
      EXPECT_THAT(output(r), HasSubstr(text));
    }
  }
  const unsigned seed_ = std::random_device{}() % 1'000'000;
};

class FakeNccl : public Nccl {
 protected:
  void SetUp() override {
    Nccl::SetUp();
    use(fake_library());
  }
  std::string numbers(const std::string& more = "") const {
    return fmt::format("shared_gpus=1 seed={} {}", seed_, more);
  }
};

TEST_F(FakeNccl, GathersAndReducesEveryRow) {
  for (const int size : {2, 3, 4}) expect_success(size, "collectives", numbers());
}

TEST_F(FakeNccl, DoesSoWithOneConnectionAndWithALateRank) {
  for (const int late : {-1, 0, 1}) expect_success(2, "collectives", numbers(fmt::format("late={}", late)), "1");
}

TEST_F(FakeNccl, ExchangesEveryByte) {
  for (const int size : {2, 3, 4}) expect_success(size, "exchanges", numbers());
  expect_success(3, "exchanges", numbers(), "1");
}

TEST_F(FakeNccl, PassesBlocksAroundARing) {
  for (const int size : {2, 3}) expect_success(size, "ring", numbers());
  expect_success(2, "ring", numbers(), "1");
}

TEST_F(FakeNccl, CapturedOnceReplayedWithNewSourcesEqualsEager) {
  for (const int size : {2, 3}) expect_success(size, "captured", numbers("replays=200"));
  expect_success(2, "captured", numbers("replays=200"), "1");
}

TEST_F(FakeNccl, ADeadPeerIsNamedAndTheGpuStaysUsable) {
  for (const char* connections : {"1", ""}) {
    const auto statuses = run(3, "comm_death", numbers(), connections);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(statuses[0], 0) << output(0);
    EXPECT_EQ(statuses[2], 0) << output(2);
  }
}

TEST_F(FakeNccl, AbortReleasesEveryStuckWait) {
  for (const char* connections : {"1", ""}) expect_success(2, "stuck", numbers(), connections);
}

TEST_F(FakeNccl, MessagesThatAreNotAlikeAreFound) {
  expect_success(2, "mismatch", numbers());
  EXPECT_THAT(output(0) + output(1), HasSubstr("MISMATCH"));
}

TEST_F(FakeNccl, AnErrorThatNcclReportsFailsTheCommunicator) {
  use(fake_library(), {"TANDEM_FAKE_NCCL_ERROR_AFTER=1"});
  expect_success(2, "reported", numbers());
  EXPECT_THAT(output(0) + output(1), HasSubstr("NCCL, which does not say who, reports"));
}

TEST_F(FakeNccl, TwoCommunicatorsNeedOneOrder) {
  expect_success(2, "two_communicators", numbers());
  expect_success(2, "two_communicators", numbers("reversed=1"));
}

TEST_F(FakeNccl, ACommunicatorThatCannotBeMadeIsReported) {
  use(fake_library(), {"TANDEM_FAKE_NCCL_FAIL_INIT=1"});
  expect_failures(2, numbers(), "transport nccl: cannot connect to rank");
}

TEST_F(FakeNccl, RanksThatShareAGpuAreNamedUnlessTheyMay) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  expect_failures(count + 1, "", fmt::format("ranks 0 and {} both use GPU-", count));
}

TEST_F(FakeNccl, ALibraryThatIsTooOldOrMissingIsNamed) {
  use(fake_library(), {"TANDEM_FAKE_NCCL_VERSION=21803"});
  expect_failures(2, numbers(), "is version 2.18.3, and 2.19.0 is the oldest that will do");
  use("/nonexistent/libnccl.so.2");
  expect_failures(2, numbers(), "no usable NCCL: /nonexistent/libnccl.so.2");
}

class RealNccl : public Nccl {
 protected:
  void SetUp() override {
    if (const std::string reason = nccl::why_unavailable(); !reason.empty()) GTEST_SKIP() << "SKIPPED: " << reason;
    Nccl::SetUp();
    use("");
  }
};

TEST_F(RealNccl, SendsToItselfEagerlyAndInAGraphAndAborts) {
  expect_success(1, "alone");
  fmt::print("{}", output(0));
}

TEST_F(RealNccl, RanksThatShareAGpuAreNamedBeforeItIsCalled) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  expect_failures(count + 1, "", fmt::format("ranks 0 and {} both use GPU-", count));
}

class RealNcclOnTwoGpus : public RealNccl {
 protected:
  void SetUp() override {
    int count = 0;
    static_cast<void>(cudaGetDeviceCount(&count));
    if (count < 2) GTEST_SKIP() << "SKIPPED: NCCL wants a GPU for each rank, and there are " << count;
    RealNccl::SetUp();
  }
};

TEST_F(RealNcclOnTwoGpus, GathersReducesAndExchanges) {
  for (const char* connections : {"", "1"}) {
    expect_success(2, "collectives", fmt::format("seed={}", seed_), connections);
    expect_success(2, "exchanges", fmt::format("seed={}", seed_), connections);
    expect_success(2, "captured", fmt::format("seed={} replays=200", seed_), connections);
  }
}

TEST_F(RealNcclOnTwoGpus, FailsInTimeAndInOrder) {
  expect_success(2, "stuck");
  expect_success(2, "two_communicators");
  const auto statuses = run(2, "comm_death");
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(statuses[0], 0) << output(0);
}

int run_rank(const Arguments& a) {
  try {
    static const std::map<std::string, void (*)(const Arguments&)> scenarios{{"collectives", collectives},
                                                                             {"captured", captured},
                                                                             {"comm_death", comm_death},
                                                                             {"exchanges", exchanges},
                                                                             {"stuck", stuck},
                                                                             {"mismatch", mismatch},
                                                                             {"reported", reported},
                                                                             {"refused", refused},
                                                                             {"two_communicators", two_communicators},
                                                                             {"alone", alone},
                                                                             {"ring", ring}};
    scenarios.at(a.scenario)(a);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "rank {}: {}\n", a.rank, e.what());
    return 1;
  }
}

}  // namespace
}  // namespace tandem::testing_p2p

int main(int argc, char** argv) { return tandem::testing_p2p::world_main(argc, argv, tandem::testing_p2p::run_rank); }

// SPDX-License-Identifier: Apache-2.0
// The communicator over cuda_p2p, between processes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "gpu/p2p/world.hpp"

namespace tandem::testing_p2p {
namespace {

class CudaCommunicator : public World {
 protected:
  const unsigned seed_ = std::random_device{}() % 1'000'000;
};

TEST_F(CudaCommunicator, GathersAndReducesEveryRow) {
  for (const int size : {1, 2, 3, 4, 8}) expect_success(size, "collectives", fmt::format("seed={}", seed_));
}

TEST_F(CudaCommunicator, DoesSoWithOneConnectionAndWithManyAndWithALateRank) {
  for (const char* connections : {"1", "32"}) {
    for (const int late : {-1, 0, 1})
      expect_success(2, "collectives", fmt::format("seed={} late={}", seed_, late), connections);
  }
}

// All by kernels, some of it (what is larger goes by copy engine), and on one stream or more than there are chunks.
TEST_F(CudaCommunicator, HoweverTheBytesArePushed) {
  for (const char* how : {"kernel_bytes=100000000", "kernel_bytes=20000", "streams=1", "streams=16"}) {
    for (const int size : {2, 3}) expect_success(size, "collectives", fmt::format("seed={} {}", seed_, how));
    expect_success(2, "captured", fmt::format("seed={} replays=200 {}", seed_, how));
  }
  expect_success(2, "collectives", fmt::format("seed={} kernel_bytes=20000", seed_), "1");
}

TEST_F(CudaCommunicator, CapturedOnceReplayedWithNewSourcesEqualsEager) {
  for (const int size : {2, 3}) expect_success(size, "captured", fmt::format("seed={} replays=1000", seed_));
  expect_success(2, "captured", fmt::format("seed={} replays=200", seed_), "1");
}

TEST_F(CudaCommunicator, PassesBlocksAroundARing) {
  for (const int size : {1, 2, 3, 5}) expect_success(size, "ring");
  for (const char* connections : {"1", "32"}) expect_success(2, "ring", "", connections);
}

TEST_F(CudaCommunicator, ADeadPeerIsNamedAndTheGpuStaysUsable) {
  for (const char* connections : {"1", ""}) {
    const auto statuses = run(3, "comm_death", "", connections);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(statuses[0], 0) << output(0);
    EXPECT_EQ(statuses[2], 0) << output(2);
  }
}

}  // namespace
}  // namespace tandem::testing_p2p

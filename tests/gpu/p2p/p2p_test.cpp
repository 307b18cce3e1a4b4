// SPDX-License-Identifier: Apache-2.0
// The transport cuda_p2p between processes, by its C interface.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gpu/p2p/mutants.hpp"
#include "gpu/p2p/world.hpp"

namespace tandem::testing_p2p {
namespace {

using CudaP2p = World;

TEST_F(CudaP2p, EveryNumberOfRanksGetsEveryWord) {
  for (const int size : {1, 2, 3, 4, 8}) expect_success(size, "operations", size == 8 ? "operations=20" : "");
}

TEST_F(CudaP2p, EveryOrderWithEveryNumberOfConnections) {
  for (const char* connections : {"1", "", "32"}) {
    for (const int order : {0, 1, 2}) {
      expect_success(2, "operations", fmt::format("order={}", order), connections);
      for (const int late : {0, 1})
        expect_success(2, "operations", fmt::format("order={} late={} operations=10", order, late), connections);
    }
  }
}

TEST_F(CudaP2p, EveryStepOfTheProtocolIsMissedWhenLeftOut) {
  const auto seed = std::random_device{}() % 1'000'000;
  for (const int order : {0, 1})
    expect_success(2, "operations", fmt::format("order={} jitter_us=2000 seed={}", order, seed));
  for (const Step step : steps) {
    SCOPED_TRACE(fmt::format("without {}, seed {}", to_string(step), seed));
    int missed = 0;
    for (const int order : {0, 1}) {
      const auto statuses =
          run(2, "operations",
              fmt::format("order={} jitter_us=2000 seed={} without={}", order, seed, static_cast<int>(step)));
      for (const int status : statuses) missed += status != 0 ? 1 : 0;
    }
    EXPECT_GT(missed, 0);
  }
}

TEST_F(CudaP2p, ChunksOfOneWordAndManyOfThem) {
  expect_success(3, "operations", "chunks=200 words=1 operations=20");
  expect_success(2, "operations", "chunks=1 words=3000001 operations=20");
}

TEST_F(CudaP2p, CapturedOnceAndReplayed) {
  for (const char* connections : {"1", ""}) expect_success(2, "replay", "replays=500", connections);
  expect_success(4, "replay", "replays=50");
}

TEST_F(CudaP2p, ADeadPeersSurvivorsAbortAndUseTheirGpuAgain) {
  for (const char* connections : {"1", ""}) {
    const auto statuses = run(3, "death", "", connections);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(statuses[0], 0) << output(0);
    EXPECT_EQ(statuses[2], 0) << output(2);
  }
}

TEST_F(CudaP2p, AbortReleasesEveryStuckWait) {
  for (const char* connections : {"1", "", "32"}) {
    expect_success(2, "stuck", "", connections);
    for (const int order : {0, 1, 2}) {
      for (const int late : {-1, 0, 1})
        expect_success(2, "aborted", fmt::format("order={} late={}", order, late), connections);
    }
  }
}

}  // namespace
}  // namespace tandem::testing_p2p

int main(int argc, char** argv) {
  return tandem::testing_p2p::world_main(argc, argv, tandem::testing_p2p::run_scenario);
}

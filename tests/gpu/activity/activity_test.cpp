// SPDX-License-Identifier: Apache-2.0
// What operations over cuda_p2p make the GPU do, as CUPTI sees it: pushes, and no kernel but those that place, pack and
// add. Ranks are processes, and each records itself.
//
// Where ranks share a GPU a push is a copy within it, which CUPTI shows without addresses: it is told from others by
// their number and sizes, which have to be exactly the plan's. Such copies run on multiprocessors, so that these are
// not idle here. With a GPU for each rank each push is checked to be a copy between GPUs, and the copy engines make it.
#include <gtest/gtest.h>

#include <cstdio>

#include "gpu/activity/recorder.hpp"
#include "gpu/activity/scenarios.hpp"
#include "gpu/p2p/world.hpp"
#include "support/random.hpp"

namespace tandem::testing_activity {
namespace {

class Activities : public testing_p2p::World {
 protected:
  void SetUp() override {
    World::SetUp();
    if (IsSkipped()) return;
    if (const std::string why = ActivityRecorder::missing(); !why.empty()) GTEST_SKIP() << "SKIPPED: no CUPTI: " << why;
  }

  void expect(int size, const std::string& scenario, const std::string& numbers = "",
              const std::string& connections = "") {
    const auto seed = static_cast<long>(testing::test_seed() % 1'000'000);
    expect_success(size, scenario, fmt::format("seed={} {}", seed, numbers), connections);
    std::printf("%s %s: %s", scenario.c_str(), numbers.c_str(), output(0).c_str());
  }
};

TEST_F(Activities, AreRecordedAndWhatDoesNotBelongIsNoticed) { expect(1, "recorder"); }

TEST_F(Activities, AGatherPushesAndPlacesOwnRows) {
  for (const int size : {2, 3}) expect(size, "gathers");
  expect(2, "gathers", "", "1");
}

TEST_F(Activities, OnlyPackedChunksArePackedAndPlaced) {
  for (const int size : {2, 4}) expect(size, "gathers", "max_runs=1");
}

TEST_F(Activities, AGatherOfRowsWrittenInPlaceRunsNoKernel) {
  for (const int size : {2, 3}) expect(size, "in_place");
}

TEST_F(Activities, AReductionSumsEachChunkWithOneKernel) {
  for (const int size : {2, 3}) expect(size, "reductions");
}

}  // namespace
}  // namespace tandem::testing_activity

int main(int argc, char** argv) {
  return tandem::testing_p2p::world_main(argc, argv, tandem::testing_activity::run_scenario);
}

// SPDX-License-Identifier: Apache-2.0
// The communicator over a transport that the host drives, for ranks whose memory is a GPU's. They are processes, and
// may share one GPU.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "gpu/p2p/comm_scenarios.hpp"
#include "gpu/p2p/world.hpp"
#include "gpu/staged/exchanges.hpp"

namespace tandem::testing_p2p {
namespace {

class Staged : public World {
 protected:
  void SetUp() override {
    ::setenv("TANDEM_TRANSPORT", "tcp", 1);  // NOLINT(concurrency-mt-unsafe)
    World::SetUp();
  }
  const unsigned seed_ = std::random_device{}() % 1'000'000;
};

TEST_F(Staged, GathersAndReducesEveryRow) {
  for (const int size : {1, 2, 3}) expect_success(size, "collectives", fmt::format("seed={}", seed_));
  expect_success(2, "collectives", fmt::format("seed={}", seed_));
  EXPECT_THAT(output(0), ::testing::HasSubstr("tcp, staged through host memory: asked for by TANDEM_TRANSPORT"));
}

TEST_F(Staged, DoesSoWithOneConnectionAndWithALateRank) {
  for (const int late : {-1, 0, 1}) expect_success(2, "collectives", fmt::format("seed={} late={}", seed_, late), "1");
  expect_success(3, "collectives", fmt::format("seed={} late=1", seed_), "1");
}

TEST_F(Staged, ExchangesInEveryOrder) {
  for (const char* connections : {"1", ""}) {
    for (const int order : {0, 1, 2})
      expect_success(order == 1 ? 3 : 2, "exchanges", fmt::format("seed={} order={}", seed_, order), connections);
    expect_success(2, "exchanges", fmt::format("seed={} order=1 late=1", seed_), connections);
  }
}

TEST_F(Staged, ADeadPeerIsNamedAndTheGpuStaysUsable) {
  for (const char* connections : {"1", ""}) {
    const auto statuses = run(3, "comm_death", "", connections);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(statuses[0], 0) << output(0);
    EXPECT_EQ(statuses[2], 0) << output(2);
  }
}

int run_rank(const Arguments& a) {
  try {
    static const std::map<std::string, void (*)(const Arguments&)> scenarios{
        {"collectives", collectives}, {"comm_death", comm_death}, {"exchanges", exchanges}};
    scenarios.at(a.scenario)(a);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "rank {}: {}\n", a.rank, e.what());
    return 1;
  }
}

}  // namespace
}  // namespace tandem::testing_p2p

int main(int argc, char** argv) {
  return tandem::testing_p2p::world_main(argc, argv, tandem::testing_p2p::run_rank);
}

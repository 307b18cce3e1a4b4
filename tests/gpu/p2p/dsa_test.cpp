// SPDX-License-Identifier: Apache-2.0
// The DSA pipeline over cuda_p2p, between processes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "gpu/p2p/world.hpp"
#include "support/random.hpp"

namespace tandem::testing_p2p {
namespace {

class CudaDsa : public World {
 protected:
  const std::string seed_ = fmt::format("seed={}", testing::test_seed() % 1'000'000);
};

TEST_F(CudaDsa, IsRightAndTheSameOnAnyNumberOfRanks) {
  for (const int size : {1, 2, 3}) {
    expect_success(size, "dsa", seed_);
    expect_success(size, "dsa", seed_ + " bf16=1");
  }
}

TEST_F(CudaDsa, OptionsOfTheOperator) {
  for (const char* options :
       {"loss=2", "loss=0 lists=1", "keep=0", "bf16=1 wire16=1 loss=2 keep=0", "e4m3=1", "e4m3=1 bf16=1 loss=2 keep=0",
        "early=1", "early=1 bf16=1 loss=2", "deterministic=1", "deterministic=1 bf16=1 loss=2"})
    expect_success(2, "dsa", seed_ + " " + options);
}

TEST_F(CudaDsa, KernelsOfOneGenerationOfGpus) {
  for (const char* options :
       {"", " e4m3=1", " early=1", " loss=0", " keep=0 wire16=1", " deterministic=1", " lists=1 loss=0"})
    expect_success(2, "dsa", seed_ + " bf16=1 tuned=1" + options);
  expect_success(3, "dsa", seed_ + " bf16=1 tuned=1");
  expect_success(2, "dsa_captured", seed_ + " bf16=1 tuned=1 e4m3=1");
}

TEST_F(CudaDsa, OneHardwareQueueIsEnough) {
  for (const int size : {2, 3}) expect_success(size, "dsa", seed_, "1");
}

TEST_F(CudaDsa, CapturedOnceReplayedWithNewInputsEqualsEager) {
  expect_success(1, "dsa_captured", seed_);
  for (const char* options : {"", " bf16=1 loss=2 keep=0", " loss=0 lists=1", " e4m3=1 bf16=1"})
    expect_success(2, "dsa_captured", seed_ + options);
  expect_success(3, "dsa_captured", seed_);
}

}  // namespace
}  // namespace tandem::testing_p2p

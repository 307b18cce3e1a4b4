// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/nvml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace tandem::detail::cuda {
namespace {

using ::testing::HasSubstr;

constexpr PciAddress gpu(unsigned bus) { return {0, bus, 0}; }

TEST(Nvml, SaysWhyItIsMissingAndAnswersNothing) {
  const Nvml none("libthere-is-no-such.so.1");
  EXPECT_THAT(none.missing(), HasSubstr("libthere-is-no-such.so.1 cannot be loaded"));
  EXPECT_EQ(none.driver_release(), "");
  EXPECT_EQ(none.links(gpu(1)).count(), 0);
  EXPECT_EQ(none.path(gpu(1), gpu(2)), PciPath::unknown);
  EXPECT_FALSE(none.nvlink_usable(gpu(1), gpu(2)).has_value());
}

TEST(Nvml, ALibraryThatIsNoNvmlIsSaidToBeTooOld) {
  const Nvml other("libc.so.6");
  EXPECT_THAT(other.missing(), HasSubstr("libc.so.6 is too old"));
  EXPECT_EQ(other.links(gpu(1)).count(), 0);
}

TEST(Nvml, SaysWhyItDoesNotStart) {
  ASSERT_EQ(setenv("TANDEM_TEST_NVML_FAILS", "1", 1), 0);
  const Nvml nvml(TANDEM_FAKE_NVML);
  unsetenv("TANDEM_TEST_NVML_FAILS");
  EXPECT_THAT(nvml.missing(), HasSubstr("does not start: Driver Not Loaded"));
}

TEST(Nvml, ReadsLinksByWhatIsAtTheirEnd) {
  const Nvml nvml(TANDEM_FAKE_NVML);
  ASSERT_EQ(nvml.missing(), "");
  EXPECT_EQ(nvml.driver_release(), "580.1.2");
  const NvLinks direct = nvml.links(gpu(1));
  EXPECT_THAT(direct.devices, ::testing::ElementsAre(gpu(2), gpu(2), gpu(0x77)));
  EXPECT_EQ(direct.to_switch, 0);
  EXPECT_EQ(direct.megabytes_per_s, 26562U);
  EXPECT_EQ(links_between(direct, nvml.links(gpu(2)), gpu(2)), 2);
  const NvLinks switched = nvml.links(gpu(3));
  EXPECT_TRUE(switched.devices.empty());
  EXPECT_EQ(switched.to_switch, 3);
  EXPECT_EQ(nvml.links(gpu(9)).count(), 0) << "there is no such GPU";
}

TEST(Nvml, ReadsWaysBetweenGpus) {
  const Nvml nvml(TANDEM_FAKE_NVML);
  EXPECT_EQ(nvml.path(gpu(1), gpu(2)), PciPath::switches);
  EXPECT_EQ(nvml.path(gpu(2), gpu(3)), PciPath::system);
  EXPECT_EQ(nvml.path(gpu(2), gpu(9)), PciPath::unknown);
  EXPECT_EQ(nvml.nvlink_usable(gpu(1), gpu(2)), true);
  EXPECT_EQ(nvml.nvlink_usable(gpu(3), gpu(4)), false);
}

}  // namespace
}  // namespace tandem::detail::cuda

// SPDX-License-Identifier: Apache-2.0
// What has to hold of GPU devices where there is no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "host_device_support.hpp"
#include "tandem/device.hpp"

namespace tandem {
namespace {

using namespace testing_host;
using ::testing::AnyOf;
using ::testing::StartsWith;

TEST(CudaDevice, ThatCannotBeIsUnsupportedWithAReason) {
  if (Device::cuda_count() > 0) GTEST_SKIP() << "this machine has a GPU: gpu_device tests it";
  for (int i = 0; i < 2; ++i) {
    try {
      const Device device = Device::cuda();
      FAIL() << "made " << device.describe();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unsupported);
      EXPECT_THAT(e.what(), AnyOf(StartsWith("unsupported: this build has no CUDA code"),
                                  StartsWith("unsupported: no CUDA driver: "),
                                  StartsWith("unsupported: device 0: this process sees 0")));
#ifdef TANDEM_EXPECT_CUDA
      EXPECT_THAT(e.what(), ::testing::Not(::testing::HasSubstr("no CUDA code")));
#else
      EXPECT_STREQ(e.what(), "unsupported: this build has no CUDA code");
#endif
    }
  }
}

TEST(CudaDevice, NoneOfItsStreamsAreTheHosts) {
  const Device host = Device::host({.name = "box"});
  EXPECT_ERROR(Stream::from_native(host, nullptr), ErrorCode::invalid_argument, "device 'box' is the host's");
  EXPECT_EQ(host.create_stream({.high_priority = true}).native(), nullptr);
  EXPECT_EQ(host.create_event().native(), nullptr);
}

}  // namespace
}  // namespace tandem

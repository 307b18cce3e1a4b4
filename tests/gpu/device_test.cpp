// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "gpu_support.hpp"
#include "support/thread_signals.hpp"

namespace tandem {
namespace {

using namespace testing_gpu;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class GpuDevice : public GpuTest {};

TEST_F(GpuDevice, SaysWhatItIs) {
  EXPECT_EQ(device().kind(), DeviceKind::cuda);
  EXPECT_THAT(device().describe(), StartsWith("cuda:0 ("));
  EXPECT_THAT(device().describe(), HasSubstr("compute capability"));
  EXPECT_FALSE(device() == Device::cuda(0));
  EXPECT_EQ(stream().device(), device());
}

TEST_F(GpuDevice, ThatIsNotThereIsUnsupported) {
  const int count = Device::cuda_count();
  const std::string seen = "this process sees " + std::to_string(count);
  EXPECT_ERROR(Device::cuda(count), ErrorCode::unsupported, "device " + std::to_string(count) + ": " + seen);
  EXPECT_ERROR(Device::cuda(-1), ErrorCode::unsupported, "device -1: " + seen);
}

TEST_F(GpuDevice, LeavesTheSignalsOfTheProcessAlone) {
  stream().synchronize(Deadline::after(std::chrono::seconds(10)));
  int seen = 0;
  for (const testing::ThreadSignals& thread : testing::threads_here()) {
    ++seen;
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) EXPECT_TRUE(thread.blocks(signal)) << thread.name;
  }
  EXPECT_GT(seen, 0) << "the driver has threads";
}

TEST_F(GpuDevice, LeavesTheCallersContextAlone) {
  const auto use = [this] {
    const Stream s = stream();
    const Event e = device().create_event();
    const Buffer b = device().allocate(100);
    s.copy(b.data(), static_cast<char*>(b.data()) + 50, 50);
    s.record(e);
    e.synchronize(soon());
    s.synchronize(soon());
    EXPECT_ERROR(device().allocate(SIZE_MAX / 2), ErrorCode::out_of_memory, "wanted");
  };
  // A thread that never used CUDA still has no context afterwards.
  std::thread([&] {
    const auto current = [] {
      using Function = CUresult (*)(CUcontext*);
      void* function = nullptr;
      cudaDriverEntryPointQueryResult found{};
      EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 4000, cudaEnableLegacyStream, &found),
                cudaSuccess);
      CUcontext context = nullptr;
      EXPECT_EQ(reinterpret_cast<Function>(function)(&context), CUDA_SUCCESS);
      return context;
    };
    const CUcontext before = current();
    use();
    EXPECT_EQ(current(), before);
  }).join();

  const int last = Device::cuda_count() - 1;
  ASSERT_EQ(cudaSetDevice(last), cudaSuccess);
  use();
  int now = -1;
  ASSERT_EQ(cudaGetDevice(&now), cudaSuccess);
  EXPECT_EQ(now, last);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(GpuDevice, MemoryIsAlignedAndCounted) {
  std::uint64_t expected = 0;
  {
    std::vector<Buffer> buffers;
    std::set<void*> addresses;
    for (const std::size_t bytes : {0U, 1U, 255U, 256U, 257U, 100000U, 0U}) {
      const Buffer b = device().allocate(bytes);
      EXPECT_EQ(b.bytes(), bytes);
      ASSERT_NE(b.data(), nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 256, 0U);
      addresses.insert(b.data());
      buffers.push_back(b);
      expected += bytes;
      EXPECT_EQ(device().memory_use().live, expected);
    }
    EXPECT_EQ(addresses.size(), buffers.size());
  }
  EXPECT_EQ(device().memory_use().live, 0U);
  EXPECT_EQ(device().memory_use().peak, expected);
}

TEST_F(GpuDevice, MemoryMayOutliveTheDevice) {
  Buffer buffer;
  {
    const Device other = Device::cuda(0);
    buffer = other.allocate(1000);
  }
  EXPECT_EQ(cudaMemset(buffer.data(), 0, 1000), cudaSuccess);
}

TEST_F(GpuDevice, PoisonedMemoryIsAllOnes) {
  const Buffer buffer = device().allocate(1001);
  std::vector<unsigned char> bytes(1001);
  ASSERT_EQ(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
  EXPECT_THAT(bytes, ::testing::Each(0xFF));
}

TEST_F(GpuDevice, HostMemoryIsPageLockedAndNotCounted) {
  const std::shared_ptr<void> memory = device().impl().allocate_host(100000);
  auto* const bytes = static_cast<unsigned char*>(memory.get());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes) % 256, 0U);
  EXPECT_THAT(std::vector<unsigned char>(bytes, bytes + 100000), ::testing::Each(0xFF));
  EXPECT_EQ(device().memory_use().peak, 0U);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, bytes), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_NE(attributes.devicePointer, nullptr);
  EXPECT_NE(device().impl().allocate_host(0), nullptr);
  // Copies that stand behind a wait do not hold up the host.
  const Buffer there = device().allocate(100000);
  const Stream s = stream();
  const auto go = signal();
  s.impl().wait(go, {});
  std::fill_n(bytes, 50000, std::uint8_t{7});
  s.copy(there.data(), bytes, 50000);
  s.copy(bytes + 50000, there.data(), 50000);
  EXPECT_EQ(bytes[50000], 0xFF);
  EXPECT_FALSE(s.idle());
  go->set();
  s.synchronize(soon());
  EXPECT_THAT(std::vector<unsigned char>(bytes + 50000, bytes + 100000), ::testing::Each(7));
}

TEST_F(GpuDevice, HostMemoryMayOutliveTheDevice) {
  std::shared_ptr<void> memory;
  {
    const Device other = Device::cuda(0);
    memory = other.impl().allocate_host(1000);
  }
  EXPECT_EQ(cudaMemset(memory.get(), 0, 1000), cudaSuccess);
}

TEST_F(GpuDevice, MoreThanThereIsIsOutOfMemory) {
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX / 2, std::size_t{1} << 50}) {
    EXPECT_ERROR(device().allocate(bytes), ErrorCode::out_of_memory, "device 0: ");
    EXPECT_ERROR(device().allocate(bytes), ErrorCode::out_of_memory, " are free");
    EXPECT_ERROR(device().impl().allocate_host(bytes), ErrorCode::out_of_memory, "of page-locked host memory wanted");
  }
  EXPECT_EQ(device().memory_use().peak, 0U);
}

TEST_F(GpuDevice, AFailedCallIsNamed) {
  const Buffer buffer = device().allocate(256);
  EXPECT_ERROR(stream().copy(buffer.data(), buffer.data(), std::size_t{1} << 50), ErrorCode::device,
               "device 0: cudaMemcpyAsync failed: cudaErrorInvalidValue: ");
}

TEST_F(GpuDevice, ManyStreamsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    const Stream a = stream();
    a.run([] {});
  }
  device().synchronize(soon());
}

// Destroyed when the driver may be gone already; the process must end as if nothing were.
struct Leftovers {
  std::optional<Device> device;
  Stream stream;
  Event event;
  Buffer buffer;
  std::shared_ptr<detail::SignalImpl> signal;
};
Leftovers leftovers;

TEST_F(GpuDevice, HandlesMayLiveUntilTheProcessEnds) {
  leftovers = {device(), stream(), device().create_event(), device().allocate(100), signal()};
  leftovers.stream.record(leftovers.event);
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "device/impl.hpp"
#include "tandem/device.hpp"
#include "unit/device/host_device_support.hpp"

namespace tandem::testing_gpu {

using testing_host::eventually;
using testing_host::Gate;
using testing_host::shortly;
using testing_host::soon;

/// True if all streams share one hardware queue: whatever is enqueued after a wait stands behind it.
inline bool one_connection() {
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return connections != nullptr && std::string(connections) == "1";
}

/// Skips its tests where there is no GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      device_.emplace(Device::cuda(0, {.poison = true}));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      GTEST_SKIP() << "SKIPPED: no GPU: " << e.what();
    }
  }
  void TearDown() override {
    if (device_) {
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "a test left an error behind";
    }
  }

  const Device& device() const { return *device_; }
  Stream stream(const std::string& name = "stream") const { return device_->create_stream({.name = name}); }
  std::shared_ptr<detail::SignalImpl> signal() const { return device_->impl().create_signal(); }

 private:
  std::optional<Device> device_;
};

/// Page-locked memory of the host: copies from and to it do not block.
template <class T>
class Pinned {
 public:
  explicit Pinned(std::size_t count = 1) : count_(count) {
    void* memory = nullptr;
    if (cudaMallocHost(&memory, count * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
  }
  ~Pinned() { cudaFreeHost(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T* data() const { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

}  // namespace tandem::testing_gpu

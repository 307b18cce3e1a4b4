// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "tandem/device.hpp"

namespace tandem::detail {

/// Counts the bytes of a device's allocations. Each of them shares it, so that it outlives the device's handles.
class MemoryCount {
 public:
  void add(std::uint64_t bytes) noexcept {
    const std::uint64_t live = live_.fetch_add(bytes) + bytes;
    std::uint64_t peak = peak_.load();
    while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
    }
  }
  void remove(std::uint64_t bytes) noexcept { live_.fetch_sub(bytes); }
  MemoryUse use() const noexcept { return {live_.load(), peak_.load()}; }

 private:
  std::atomic<std::uint64_t> live_{0};
  std::atomic<std::uint64_t> peak_{0};
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/thread.hpp"
#include "device/cuda/device.hpp"
#include "tandem/device.hpp"

namespace tandem {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

struct Seen {
  int devices = 0;
  std::string no_driver;  // why there is none
};

/// The first call starts threads of the driver.
cudaError_t count_devices(int& devices) noexcept {
  const detail::SignalsBlocked blocked;
  return cudaGetDeviceCount(&devices);
}

Seen look() {
  Seen seen;
  const cudaError_t result = count_devices(seen.devices);
  if (result == cudaSuccess) return seen;
  static_cast<void>(cudaGetLastError());
  seen.devices = 0;
  if (result == cudaErrorNoDevice) return seen;
  int version = 0;
  static_cast<void>(cudaDriverGetVersion(&version));
  if (version == 0) {
    seen.no_driver = "libcuda.so.1 cannot be loaded";
  } else if (result == cudaErrorInsufficientDriver) {
    seen.no_driver = fmt::format("the one here is for CUDA {}, this build needs one for {}", version_text(version),
                                 version_text(CUDART_VERSION));
  } else {
    seen.no_driver = fmt::format("{}: {}", cudaGetErrorName(result), cudaGetErrorString(result));
  }
  return seen;
}

}  // namespace

Device Device::cuda(int ordinal, const CudaDeviceOptions& options) {
  if (const Seen seen = look(); !seen.no_driver.empty()) {
    throw Error(ErrorCode::unsupported, "no CUDA driver: " + seen.no_driver);
  } else if (ordinal < 0 || ordinal >= seen.devices) {
    throw Error(ErrorCode::unsupported, fmt::format("device {}: this process sees {}", ordinal, seen.devices));
  }
  const detail::SignalsBlocked blocked;  // a context has threads of its own
  return Device(std::make_shared<detail::cuda::CudaDevice>(ordinal, options));
}

int Device::cuda_count() noexcept {
  int devices = 0;
  if (count_devices(devices) == cudaSuccess) return devices;
  static_cast<void>(cudaGetLastError());
  return 0;
}

}  // namespace tandem

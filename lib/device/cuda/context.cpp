// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/context.hpp"

#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/host_task.hpp"
#include "tandem/error.hpp"

namespace tandem::detail::cuda {

Context Context::open(int ordinal) {
  CUdevice device = 0;
  check(driver().cuDeviceGet(&device, ordinal), "cuDeviceGet", ordinal);
  Context context{ordinal, nullptr};
  check(driver().cuDevicePrimaryCtxRetain(&context.handle, device), "cuDevicePrimaryCtxRetain", ordinal);
  return context;
}

DeviceGuard::DeviceGuard(const Context& context) : ordinal_(context.ordinal) {
  if (in_host_task()) {
    throw Error(ErrorCode::invalid_usage, "CUDA cannot be used by a task that runs on a CUDA stream");
  }
  check(driver().cuCtxPushCurrent(context.handle), "cuCtxPushCurrent", ordinal_);
}

DeviceGuard::~DeviceGuard() {
  CUcontext popped = nullptr;
  check_quietly(driver().cuCtxPopCurrent(&popped), "cuCtxPopCurrent", ordinal_);
}

QuietDeviceGuard::QuietDeviceGuard(const Context& context) noexcept
    : ordinal_(context.ordinal), pushed_(driver().cuCtxPushCurrent(context.handle) == CUDA_SUCCESS) {}

QuietDeviceGuard::~QuietDeviceGuard() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  check_quietly(driver().cuCtxPopCurrent(&popped), "cuCtxPopCurrent", ordinal_);
}

}  // namespace tandem::detail::cuda

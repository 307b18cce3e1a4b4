// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tandem::detail::cuda {

/// A GPU's primary context, which the CUDA runtime and whoever uses it share. Retained for the life of the process:
/// work on streams without handles may outlive every object of this library. A value.
struct Context {
  int ordinal = 0;
  CUcontext handle = nullptr;

  /// Throws device.
  static Context open(int ordinal);
};

/// Makes a GPU the calling thread's current one, and brings back what was current. It pushes a context instead of
/// calling cudaSetDevice twice: that would make a context on device 0 for every thread that never chose a device.
///
/// Throws invalid_usage on a thread that runs a stream's task, where CUDA must not be called.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Context& context);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int ordinal_;
};

/// The same for destructors: false where no CUDA call can be made, as when the driver is gone at the process' end.
class QuietDeviceGuard {
 public:
  explicit QuietDeviceGuard(const Context& context) noexcept;
  ~QuietDeviceGuard();
  QuietDeviceGuard(const QuietDeviceGuard&) = delete;
  QuietDeviceGuard& operator=(const QuietDeviceGuard&) = delete;
  explicit operator bool() const noexcept { return pushed_; }

 private:
  int ordinal_;
  bool pushed_;
};

/// Lets the calling thread query events and allocate while another thread captures a graph. Without it the capture
/// becomes invalid, though nothing here has to do with it.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace tandem::detail::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/context.hpp"
#include "tandem/device.hpp"

namespace tandem::detail::cuda {

/// What a kernel launch needs of a stream.
struct NativeStream {
  cudaStream_t handle = nullptr;
  Context context;
};

/// Throws invalid_argument for a stream of the host.
NativeStream native_stream(const Stream& stream);

}  // namespace tandem::detail::cuda

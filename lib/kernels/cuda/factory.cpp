// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "kernels/cuda/generic/kernel_set.hpp"
#include "kernels/cuda/sm90/kernel_set.hpp"

namespace tandem {

std::shared_ptr<KernelSet> cuda_kernels(const Device& device, CudaKernels which) {
  if (device.kind() != DeviceKind::cuda) {
    throw Error(ErrorCode::unsupported, fmt::format("CUDA kernels: {} is no GPU", device.describe()));
  }
  namespace sets = detail::cuda;
  if (which == CudaKernels::generic) return std::make_shared<sets::generic::GenericKernels>(device);
  const std::string reason = sets::sm90::why_not(device);
  if (reason.empty()) return sets::sm90::make_kernels(device);
  if (which == CudaKernels::best) return std::make_shared<sets::generic::GenericKernels>(device);
  throw Error(ErrorCode::unsupported, "kernel set cuda.sm90: " + reason);
}

}  // namespace tandem

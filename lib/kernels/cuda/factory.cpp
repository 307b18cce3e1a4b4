// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "kernels/cuda/generic/kernel_set.hpp"
#include "kernels/cuda/sm90/kernel_set.hpp"

namespace tandem {

std::shared_ptr<KernelSet> cuda_kernels(const Device& device, const CudaKernelOptions& options) {
  if (device.kind() != DeviceKind::cuda) {
    throw Error(ErrorCode::unsupported, fmt::format("CUDA kernels: {} is no GPU", device.describe()));
  }
  namespace sets = detail::cuda;
  const auto generic = [&] { return std::make_shared<sets::generic::GenericKernels>(device, options.deterministic); };
  if (options.which == CudaKernels::generic) return generic();
  const std::string reason = sets::sm90::why_not(device);
  if (reason.empty()) return sets::sm90::make_kernels(device, options.deterministic);
  if (options.which == CudaKernels::best) return generic();
  throw Error(ErrorCode::unsupported, "kernel set cuda.sm90: " + reason);
}

}  // namespace tandem

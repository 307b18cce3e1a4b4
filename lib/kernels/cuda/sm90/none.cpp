// SPDX-License-Identifier: Apache-2.0
// Stands in for the set in builds whose CMAKE_CUDA_ARCHITECTURES have no Hopper.
#include "kernels/cuda/sm90/kernel_set.hpp"

namespace tandem::detail::cuda::sm90 {

std::string why_not(const Device& /*device*/) { return "this build has no code for Hopper"; }

std::shared_ptr<KernelSet> make_kernels(const Device& device, bool /*deterministic*/) {
  throw Error(ErrorCode::unsupported, "kernel set cuda.sm90: " + why_not(device));
}

}  // namespace tandem::detail::cuda::sm90

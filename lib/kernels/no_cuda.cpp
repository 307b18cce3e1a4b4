// SPDX-License-Identifier: Apache-2.0
// Stands in for cuda/ in builds without CUDA code.
#include "tandem/kernels.hpp"

namespace tandem {

std::shared_ptr<KernelSet> cuda_kernels(const Device& /*device*/, const CudaKernelOptions& /*options*/) {
  throw Error(ErrorCode::unsupported, "CUDA kernels: this build has no CUDA code");
}

}  // namespace tandem

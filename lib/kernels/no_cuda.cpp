// SPDX-License-Identifier: Apache-2.0
// Stands in for cuda/ in builds without CUDA code.
#include "tandem/kernels.hpp"

namespace tandem {

std::shared_ptr<KernelSet> cuda_kernels(const Device& /*device*/) {
  throw Error(ErrorCode::unsupported, "kernel set cuda.generic: this build has no CUDA code");
}

}  // namespace tandem

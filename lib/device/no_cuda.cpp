// SPDX-License-Identifier: Apache-2.0
// Stands in for cuda/ in builds without CUDA code.
#include "tandem/device.hpp"

namespace tandem {

Device Device::cuda(int /*ordinal*/, const CudaDeviceOptions& /*options*/) {
  throw Error(ErrorCode::unsupported, "this build has no CUDA code");
}

int Device::cuda_count() noexcept { return 0; }

}  // namespace tandem

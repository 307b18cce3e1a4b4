// SPDX-License-Identifier: Apache-2.0
// Stands in for cuda/ in builds without CUDA code.
#include "device/topology.hpp"
#include "tandem/device.hpp"

namespace tandem {

Device Device::cuda(int /*ordinal*/, const CudaDeviceOptions& /*options*/) {
  throw Error(ErrorCode::unsupported, "this build has no CUDA code");
}

int Device::cuda_count() noexcept { return 0; }

detail::Topology detail::read_topology() {
  Topology topology;
  topology.no_gpus = topology.no_links = "this build has no CUDA code";
  return topology;
}

}  // namespace tandem

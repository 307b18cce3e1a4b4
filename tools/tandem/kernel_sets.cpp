// SPDX-License-Identifier: Apache-2.0
#include "kernel_sets.hpp"

#include <fmt/format.h>

#include <vector>

#include "usage.hpp"

namespace tandem::cli {

std::string choose_kernels(const std::optional<std::string>& given, DeviceKind device) {
  const std::vector<std::string> names{"cpu", "cuda", "cuda.generic", "cuda.sm90"};
  const bool cuda = device == DeviceKind::cuda;
  const std::string& name = names[given ? parse_choice("--kernels", *given, names) : cuda ? 1 : 0];
  if (name.starts_with("cuda") == cuda) return name;
  throw UsageError(fmt::format("--kernels: {} do not run on --device {}; use {}", name, cuda ? "cuda" : "host",
                               cuda ? "cuda" : "cpu"));
}

std::shared_ptr<KernelSet> make_kernels(const std::string& name, const Device& device, int threads,
                                        bool deterministic) {
  const auto cuda = [&](CudaKernels which) {
    return cuda_kernels(device, {.which = which, .deterministic = deterministic});
  };
  if (name == "cuda") return cuda(CudaKernels::best);
  if (name == "cuda.generic") return cuda(CudaKernels::generic);
  if (name == "cuda.sm90") return cuda(CudaKernels::sm90);
  return cpu_kernels({.threads = threads});
}

}  // namespace tandem::cli

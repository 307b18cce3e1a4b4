// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/preload.hpp"

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "device/cuda/check.hpp"

namespace tandem::detail::cuda {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<const void*> kernels;
};

// Made when first asked for: files register in no particular order, and later with a library that is loaded later.
Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

bool register_kernel_address(const void* kernel) {
  const std::lock_guard lock(registry().mutex);
  registry().kernels.push_back(kernel);
  return true;
}

void preload(int ordinal) {
  const std::lock_guard lock(registry().mutex);
  for (const void* kernel : registry().kernels) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes", ordinal);
  }
}

}  // namespace tandem::detail::cuda

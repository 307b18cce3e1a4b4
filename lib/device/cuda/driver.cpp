// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "tandem/error.hpp"

namespace tandem::detail::cuda {
namespace {

void* entry_point(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableLegacyStream, &found);
  if (result != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorCode::unsupported, fmt::format("no CUDA driver: {}: {}", name, cudaGetErrorString(result)));
  }
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error(ErrorCode::unsupported, fmt::format("no CUDA driver: the one here has no {} of version {}.{}", name,
                                                    version / 1000, version % 1000 / 10));
  }
  return function;
}

Driver load() {
  Driver table;
#define TANDEM_DRIVER_LOAD(name, version) \
  table.name = reinterpret_cast<PFN_##name##_v##version>(entry_point(#name, version));
  TANDEM_DRIVER_FUNCTIONS(TANDEM_DRIVER_LOAD)
#undef TANDEM_DRIVER_LOAD
  return table;
}

}  // namespace

Driver& replaceable_driver() {
  static Driver table = load();
  return table;
}

const Driver& driver() { return replaceable_driver(); }

}  // namespace tandem::detail::cuda

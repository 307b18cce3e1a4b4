// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tandem::detail::sm90 {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time so that nothing links against the driver; null if there is none.
inline EncodeTiled find_encode() {
  static const EncodeTiled encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(found)
                                                                         : nullptr;
  }();
  return encode;
}

}  // namespace tandem::detail::sm90

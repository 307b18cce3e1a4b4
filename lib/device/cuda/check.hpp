// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tandem::detail::cuda {

/// Throws if `result` is a failure: out_of_memory or unsupported (no code for this GPU) where it says so, else device.
/// The text names device, call and reason. The runtime's "last error" is cleared: whoever checks it next did not fail.
void check(cudaError_t result, const char* call, int ordinal);
void check(CUresult result, const char* call, int ordinal);

/// For destructors: a failure is logged. That the driver is gone already, at the process' end, is none.
void check_quietly(cudaError_t result, const char* call, int ordinal) noexcept;
void check_quietly(CUresult result, const char* call, int ordinal) noexcept;

/// True for success, false for "not ready"; throws as check() does.
bool ready(cudaError_t result, const char* call, int ordinal);

}  // namespace tandem::detail::cuda

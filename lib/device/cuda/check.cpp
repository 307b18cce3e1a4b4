// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/check.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "base/log.hpp"
#include "device/cuda/driver.hpp"
#include "tandem/error.hpp"

namespace tandem::detail::cuda {
namespace {

std::string text(cudaError_t result) {
  return fmt::format("{}: {}", cudaGetErrorName(result), cudaGetErrorString(result));
}

std::string text(CUresult result) {
  const char* name = nullptr;
  const char* meaning = nullptr;
  if (driver().cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (driver().cuGetErrorString(result, &meaning) != CUDA_SUCCESS) meaning = nullptr;
  return fmt::format("{}: {}", name != nullptr ? name : fmt::format("error {}", static_cast<int>(result)),
                     meaning != nullptr ? meaning : "not known to this driver");
}

ErrorCode code(cudaError_t result) {
  if (result == cudaErrorMemoryAllocation) return ErrorCode::out_of_memory;
  if (result == cudaErrorNoKernelImageForDevice) return ErrorCode::unsupported;
  return ErrorCode::device;
}

ErrorCode code(CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return ErrorCode::out_of_memory;
  if (result == CUDA_ERROR_NO_BINARY_FOR_GPU) return ErrorCode::unsupported;
  return ErrorCode::device;
}

template <class Result>
std::string message(Result result, const char* call, int ordinal) {
  return fmt::format("device {}: {} failed: {}", ordinal, call, text(result));
}

template <class Result>
void log_failure(Result result, const char* call, int ordinal) noexcept {
  try {
    log::warn("{}", message(result, call, ordinal));
  } catch (const std::exception&) {
    log::write(log::Level::warn, "a CUDA call of a destructor failed");  // and there is no memory to say which
  }
}

}  // namespace

void check(cudaError_t result, const char* call, int ordinal) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(code(result), message(result, call, ordinal));
}

void check(CUresult result, const char* call, int ordinal) {
  if (result != CUDA_SUCCESS) throw Error(code(result), message(result, call, ordinal));
}

void check_quietly(cudaError_t result, const char* call, int ordinal) noexcept {
  if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
  static_cast<void>(cudaGetLastError());
  log_failure(result, call, ordinal);
}

void check_quietly(CUresult result, const char* call, int ordinal) noexcept {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) return;
  log_failure(result, call, ordinal);
}

bool ready(cudaError_t result, const char* call, int ordinal) {
  if (result == cudaErrorNotReady) {
    // Some versions of the runtime remember it as an error.
    if (cudaPeekAtLastError() == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
    return false;
  }
  check(result, call, ordinal);
  return true;
}

}  // namespace tandem::detail::cuda

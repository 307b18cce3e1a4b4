// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/cublas.hpp"

#include <fmt/format.h>

#include "device/cuda/native.hpp"
#include "tandem/error.hpp"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "device/cuda/check.hpp"
#include "tandem/bench/cuda_kernels.hpp"

namespace tandem::cli {

using detail::cuda::DeviceGuard;
using detail::cuda::native_stream;

namespace {

constexpr std::size_t matrix_bytes = std::size_t{Gemm::extent} * Gemm::extent * sizeof(std::uint16_t);
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what cuBLAS wants on Hopper

// The interface in use is the same in both.
constexpr const char* names[] = {"libcublas.so.13", "libcublas.so.12"};

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorCode::device, fmt::format("{} failed with status {}", call, static_cast<int>(status)));
}

}  // namespace

struct Gemm::Library {
  Library() {
    void* handle_of_file = nullptr;
    std::string reasons;
    for (const char* name : names) {
      // Never closed: it may have work of its own under way.
      if (handle_of_file == nullptr) handle_of_file = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle_of_file == nullptr) reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", ::dlerror());
    }
    if (handle_of_file == nullptr) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("--beside: no cuBLAS: {}; LD_LIBRARY_PATH can name its folder", reasons));
    }
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle_of_file, name));
      if (function == nullptr) throw Error(ErrorCode::unsupported, fmt::format("--beside: cuBLAS has no {}", name));
    };
    load(create, "cublasCreate_v2");
    load(destroy, "cublasDestroy_v2");
    load(set_stream, "cublasSetStream_v2");
    load(set_workspace, "cublasSetWorkspace_v2");
    load(gemm, "cublasGemmEx");
  }

  decltype(&::cublasCreate_v2) create = nullptr;
  decltype(&::cublasDestroy_v2) destroy = nullptr;
  decltype(&::cublasSetStream_v2) set_stream = nullptr;
  decltype(&::cublasSetWorkspace_v2) set_workspace = nullptr;
  // Spelled out, as the header overloads it in C++.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*,
                         cudaDataType, int, const void*, cudaDataType, int, const void*, void*, cudaDataType, int,
                         cublasComputeType_t, cublasGemmAlgo_t) = nullptr;
  cublasHandle_t handle = nullptr;
};

Gemm::Gemm(const Device& device)
    : library_(std::make_unique<Library>()),
      context_(native_stream(device.create_stream()).context),
      a_(device.allocate(matrix_bytes)),
      b_(device.allocate(matrix_bytes)),
      c_(device.allocate(matrix_bytes)),
      workspace_(device.allocate(workspace_bytes)) {
  const Stream stream = device.create_stream({.name = "bench-matrices"});
  const DeviceGuard guard(context_);
  const auto count = static_cast<std::uint64_t>(extent) * extent;
  kernels::fill_matrix(native_stream(stream).handle, static_cast<std::uint16_t*>(a_.data()), count, 1);
  kernels::fill_matrix(native_stream(stream).handle, static_cast<std::uint16_t*>(b_.data()), count, 2);
  detail::cuda::check(cudaGetLastError(), "a kernel's launch", context_.ordinal);
  check_cublas(library_->create(&library_->handle), "cublasCreate");
  run(stream);  // loads its kernel
  stream.synchronize(Deadline::after(std::chrono::seconds(60)));
}

Gemm::~Gemm() {
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (guard && library_->handle != nullptr) static_cast<void>(library_->destroy(library_->handle));
}

void Gemm::run(const Stream& stream) const {
  const DeviceGuard guard(context_);
  const float alpha = 1, beta = 0;
  check_cublas(library_->set_stream(library_->handle, native_stream(stream).handle), "cublasSetStream");
  // A new stream takes the workspace back.
  check_cublas(library_->set_workspace(library_->handle, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
  check_cublas(library_->gemm(library_->handle, CUBLAS_OP_T, CUBLAS_OP_N, extent, extent, extent, &alpha, a_.data(),
                              CUDA_R_16BF, extent, b_.data(), CUDA_R_16BF, extent, &beta, c_.data(), CUDA_R_16BF,
                              extent, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               "cublasGemmEx");
}

}  // namespace tandem::cli

#else

namespace tandem::cli {

struct Gemm::Library {};

Gemm::Gemm(const Device& device) : context_(detail::cuda::native_stream(device.create_stream()).context) {
  throw Error(ErrorCode::unsupported, "--beside: this build has no cuBLAS; it needs cublas_v2.h to be built with it");
}
Gemm::~Gemm() = default;
void Gemm::run(const Stream&) const {}

}  // namespace tandem::cli

#endif

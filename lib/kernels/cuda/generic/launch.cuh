// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cuda/check.hpp"
#include "device/cuda/native.hpp"
#include "device/cuda/preload.hpp"
#include "kernels/cuda/generic/elements.cuh"
#include "tandem/tensor.hpp"

namespace tandem::detail::cuda::generic {

/// All kernels have blocks of so many threads.
constexpr int block_threads = 256;
/// Dynamic shared memory that a block may have on every GPU from sm_80 on: 99 KiB, less what kernels have statically.
constexpr std::size_t most_shared = 97 * 1024;

__device__ inline void* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

/// Enqueues `kernel` with `rows` by `layers` blocks; nothing if there are none.
template <class Argument>
void launch(const NativeStream& stream, void (*kernel)(Argument), Argument argument, std::int64_t rows,
            std::int64_t layers, std::size_t shared_bytes) {
  if (rows == 0 || layers == 0) return;
  const DeviceGuard guard(stream.context);
  const auto* const function = reinterpret_cast<const void*>(kernel);
  // What is more than 48 KiB has to be asked for: always as much, as a graph may launch what was captured before.
  if (shared_bytes > std::size_t{48} * 1024) {
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most_shared)),
          "cudaFuncSetAttribute", stream.context.ordinal);
  }
  void* arguments[] = {&argument};
  check(cudaLaunchKernel(function, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(layers)),
                         dim3(block_threads), arguments, shared_bytes, stream.handle),
        "cudaLaunchKernel", stream.context.ordinal);
}

template <class T>
Rows<T> rows_of(const Tensor& tensor) {
  if (!tensor.valid()) return {};
  return {static_cast<T*>(tensor.data()), tensor.stride(0), tensor.dims() == 3 ? tensor.stride(1) : 0};
}

}  // namespace tandem::detail::cuda::generic

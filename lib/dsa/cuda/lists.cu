// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.hpp"
#include "device/cuda/native.hpp"
#include "device/cuda/preload.hpp"
#include "dsa/cuda/lists.hpp"

namespace tandem::detail::cuda {
namespace {

constexpr int block_threads = 256;
constexpr int none = 0x7FFFFFFF;

struct ListArgument {
  const int* bounds;  ///< [s, 2]
  const int* shift;   ///< [s]
  const int* from;
  std::int64_t from_stride;
  int* to;
  std::int64_t to_stride;
  int* length;
  int topk;
  int padded_topk;  ///< a power of two
};

/// One block for each row: keeps what the row sees, sorts, and closes the gaps that repetitions leave.
__global__ void __launch_bounds__(block_threads) landed_lists(ListArgument a) {
  extern __shared__ int keys[];
  const std::int64_t row = blockIdx.x;
  const int begin = a.bounds[2 * row];
  const int end = a.bounds[2 * row + 1];
  const std::int64_t shift = a.shift[row];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < a.padded_topk; i += block_threads) {
    const std::int64_t landed = i < a.topk ? a.from[row * a.from_stride + i] - shift : -1;
    const bool seen = i < a.topk && a.from[row * a.from_stride + i] >= 0 && landed >= begin && landed < end;
    keys[i] = seen ? static_cast<int>(landed) : none;
  }
  for (int size = 2; size <= a.padded_topk; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = thread; pair < a.padded_topk / 2; pair += block_threads) {
        const int low = 2 * distance * (pair / distance) + pair % distance;
        const int x = keys[low];
        const int y = keys[low + distance];
        if ((x > y) == ((low & size) == 0)) {
          keys[low] = y;
          keys[low + distance] = x;
        }
      }
    }
  }
  __shared__ int counts[block_threads];
  // Each thread has a stretch of the sorted keys, and finds where its first distinct one goes.
  const int stretch = (a.padded_topk + block_threads - 1) / block_threads;
  const int first = min(thread * stretch, a.padded_topk);
  const int last = min(first + stretch, a.padded_topk);
  const auto distinct = [&](int i) { return keys[i] != none && (i == 0 || keys[i] != keys[i - 1]); };
  __syncthreads();
  int count = 0;
  for (int i = first; i < last; ++i) count += distinct(i) ? 1 : 0;
  counts[thread] = count;
  __syncthreads();
  int at = 0;
  int length = 0;
  for (int t = 0; t < block_threads; ++t) {
    if (t < thread) at += counts[t];
    length += counts[t];
  }
  int* const to = a.to + row * a.to_stride;
  for (int i = first; i < last; ++i) {
    if (distinct(i)) to[at++] = keys[i];
  }
  for (int i = length + thread; i < a.topk; i += block_threads) to[i] = -1;
  if (thread == 0) a.length[row] = length;
}

__global__ void __launch_bounds__(block_threads) global_lists(ListArgument a) {
  const std::int64_t row = blockIdx.x;
  const int length = a.length[row];
  for (int i = static_cast<int>(threadIdx.x); i < a.topk; i += block_threads) {
    a.to[row * a.to_stride + i] = i < length ? a.from[row * a.from_stride + i] + a.shift[row] : -1;
  }
}

const bool registered = register_kernel(landed_lists) && register_kernel(global_lists);

void launch(const Stream& stream, void (*kernel)(ListArgument), ListArgument argument, std::int64_t rows,
            std::size_t shared_bytes) {
  if (rows == 0) return;
  const NativeStream native = native_stream(stream);
  const DeviceGuard guard(native.context);
  void* arguments[] = {&argument};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(rows)), dim3(block_threads),
                         arguments, shared_bytes, native.handle),
        "cudaLaunchKernel", native.context.ordinal);
}

}  // namespace

void to_landed_lists(const Stream& stream, const Tensor& bounds, const Tensor& shift, const Tensor& global,
                     const Tensor& indices, const Tensor& length) {
  ListArgument a{bounds.data_as<const int>(),
                 shift.data_as<const int>(),
                 global.data_as<const int>(),
                 global.stride(0),
                 indices.data_as<int>(),
                 indices.stride(0),
                 length.data_as<int>(),
                 static_cast<int>(global.size(1)),
                 1};
  while (a.padded_topk < a.topk) a.padded_topk *= 2;
  launch(stream, landed_lists, a, global.size(0), static_cast<std::size_t>(a.padded_topk) * sizeof(int));
}

void to_global_lists(const Stream& stream, const Tensor& shift, const Tensor& indices, const Tensor& length,
                     const Tensor& global) {
  const ListArgument a{nullptr,
                       shift.data_as<const int>(),
                       indices.data_as<const int>(),
                       indices.stride(0),
                       global.data_as<int>(),
                       global.stride(0),
                       length.data_as<int>(),
                       static_cast<int>(indices.size(1)),
                       0};
  launch(stream, global_lists, a, indices.size(0), 0);
}

void zero(const Stream& stream, void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  const NativeStream native = native_stream(stream);
  const DeviceGuard guard(native.context);
  check(cudaMemsetAsync(memory, 0, bytes, native.handle), "cudaMemsetAsync", native.context.ordinal);
}

}  // namespace tandem::detail::cuda

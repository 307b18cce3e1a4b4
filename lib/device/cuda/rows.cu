// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <string>

#include "device/cuda/check.hpp"
#include "device/cuda/native.hpp"
#include "device/cuda/preload.hpp"
#include "device/cuda/rows.hpp"

namespace tandem::detail::cuda {
namespace {

constexpr int block_threads = 256;
constexpr std::int64_t most_blocks = 2048;  // more than any GPU runs at once; blocks stride over what is left

// The row of the strided side that packed row `packed` stands for: in the last run that begins at or before it.
__device__ std::int64_t strided_row(const RowRuns& runs, std::int64_t packed) {
  std::int64_t low = 0;
  for (std::int64_t high = runs.count; high - low > 1;) {
    const std::int64_t middle = low + (high - low) / 2;
    if (runs.runs[middle].packed_row <= packed) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return runs.runs[low].row + (packed - runs.runs[low].packed_row);
}

// threadIdx.x runs along a row, threadIdx.y over the rows of a block.
template <class Body>
__device__ void for_each_row(const RowRuns& runs, const Body& body) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.y;
  for (std::int64_t packed = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; packed < runs.rows; packed += step) {
    body(strided_row(runs, packed), packed);
  }
}

struct MoveRows {
  RowRuns runs;
  char* strided;
  char* packed;
  std::int64_t stride;
  std::int64_t units;  // of a row, each sizeof(Unit)
};

template <class Unit, bool to_packed>
__global__ void __launch_bounds__(block_threads) move_rows(MoveRows m) {
  for_each_row(m.runs, [&](std::int64_t row, std::int64_t packed) {
    auto* const apart = reinterpret_cast<Unit*>(m.strided + row * m.stride);
    auto* const dense = reinterpret_cast<Unit*>(m.packed) + packed * m.units;
    const Unit* __restrict__ const from = to_packed ? apart : dense;
    Unit* __restrict__ const to = to_packed ? dense : apart;
#pragma unroll 4
    for (std::int64_t i = threadIdx.x; i < m.units; i += blockDim.x) to[i] = from[i];
  });
}

// A bfloat16 is the upper half of a binary32.
__device__ float low_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
__device__ float high_bf16(unsigned bits) { return __uint_as_float(bits & 0xFFFF0000U); }

struct F32 {
  static constexpr std::int64_t bytes = 4;
  static __device__ float one(const char* at) { return *reinterpret_cast<const float*>(at); }
  static __device__ float4 four(const char* at) { return *reinterpret_cast<const float4*>(at); }
};

struct Bf16 {
  static constexpr std::int64_t bytes = 2;
  static __device__ float one(const char* at) { return low_bf16(*reinterpret_cast<const unsigned short*>(at)); }
  static __device__ float4 four(const char* at) {
    const uint2 bits = *reinterpret_cast<const uint2*>(at);
    return {low_bf16(bits.x), high_bf16(bits.x), low_bf16(bits.y), high_bf16(bits.y)};
  }
};

struct AddRows {
  RowRuns runs;
  char* accumulator;
  const char* packed;
  std::int64_t stride;
  std::int64_t elements;
};

template <class Addend, int width>
__global__ void __launch_bounds__(block_threads) add_packed_rows(AddRows a) {
  for_each_row(a.runs, [&](std::int64_t row, std::int64_t packed) {
    auto* const sum = reinterpret_cast<float*>(a.accumulator + row * a.stride);
    const char* const from = a.packed + packed * a.elements * Addend::bytes;
#pragma unroll 4
    for (std::int64_t i = threadIdx.x * width; i < a.elements; i += blockDim.x * width) {
      if constexpr (width == 4) {
        auto* const four = reinterpret_cast<float4*>(sum + i);
        const float4 x = Addend::four(from + i * Addend::bytes);
        float4 s = *four;
        s.x += x.x;
        s.y += x.y;
        s.z += x.z;
        s.w += x.w;
        *four = s;
      } else {
        sum[i] += Addend::one(from + i * Addend::bytes);
      }
    }
  });
}

const bool registered =
    register_kernel(move_rows<uint4, true>) && register_kernel(move_rows<uint4, false>) &&
    register_kernel(move_rows<uint2, true>) && register_kernel(move_rows<uint2, false>) &&
    register_kernel(move_rows<unsigned, true>) && register_kernel(move_rows<unsigned, false>) &&
    register_kernel(move_rows<unsigned short, true>) && register_kernel(move_rows<unsigned short, false>) &&
    register_kernel(move_rows<unsigned char, true>) && register_kernel(move_rows<unsigned char, false>) &&
    register_kernel(add_packed_rows<F32, 4>) && register_kernel(add_packed_rows<F32, 1>) &&
    register_kernel(add_packed_rows<Bf16, 4>) && register_kernel(add_packed_rows<Bf16, 1>);

std::uint64_t bits_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

// `units` is how many accesses a row takes. Short rows share a warp, long ones get a block.
template <class Argument>
void launch(const NativeStream& stream, void (*kernel)(Argument), Argument argument, std::int64_t rows,
            std::int64_t units) {
  std::int64_t along = 32;
  if (units < 32) along = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(units)));
  if (units >= 4 * block_threads) along = block_threads;
  const std::int64_t across = block_threads / along;
  const std::int64_t blocks = std::min((rows + across - 1) / across, most_blocks);
  void* arguments[] = {&argument};
  check(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(along), static_cast<unsigned>(across)), arguments, 0, stream.handle),
      "cudaLaunchKernel", stream.context.ordinal);
}

template <bool to_packed>
void move(const Stream& on, const RowRuns& runs, const void* strided, std::size_t stride, const void* packed,
          std::size_t row_bytes) {
  const NativeStream stream = native_stream(on);
  if (runs.rows == 0 || row_bytes == 0) return;
  const DeviceGuard guard(stream.context);
  // The largest power of two that divides all of them, up to 16.
  const std::uint64_t aligned = bits_of(strided) | stride | bits_of(packed) | row_bytes | 16;
  const auto unit = static_cast<std::int64_t>(aligned & (~aligned + 1));
  const MoveRows m{runs, static_cast<char*>(const_cast<void*>(strided)), static_cast<char*>(const_cast<void*>(packed)),
                   static_cast<std::int64_t>(stride), static_cast<std::int64_t>(row_bytes) / unit};
  void (*kernel)(MoveRows) = move_rows<unsigned char, to_packed>;
  if (unit == 2) kernel = move_rows<unsigned short, to_packed>;
  if (unit == 4) kernel = move_rows<unsigned, to_packed>;
  if (unit == 8) kernel = move_rows<uint2, to_packed>;
  if (unit == 16) kernel = move_rows<uint4, to_packed>;
  launch(stream, kernel, m, runs.rows, m.units);
}

template <class Addend>
void add(const Stream& on, const AddRows& a) {
  const NativeStream stream = native_stream(on);
  if (a.runs.rows == 0 || a.elements == 0) return;
  const std::uint64_t sums = bits_of(a.accumulator) | static_cast<std::uint64_t>(a.stride);
  if (sums % 4 != 0 || bits_of(a.packed) % Addend::bytes != 0) {
    throw Error(ErrorCode::invalid_argument, "add_rows: an address or stride is not a multiple of its element's size");
  }
  const DeviceGuard guard(stream.context);
  const bool wide = sums % 16 == 0 && bits_of(a.packed) % (4 * Addend::bytes) == 0 && a.elements % 4 == 0;
  launch(stream, wide ? add_packed_rows<Addend, 4> : add_packed_rows<Addend, 1>, a, a.runs.rows,
         wide ? a.elements / 4 : a.elements);
}

}  // namespace

void pack_rows(const Stream& stream, const RowRuns& runs, const void* source, std::size_t source_stride, void* packed,
               std::size_t row_bytes) {
  move<true>(stream, runs, source, source_stride, packed, row_bytes);
}

void place_rows(const Stream& stream, const RowRuns& runs, const void* packed, void* destination,
                std::size_t destination_stride, std::size_t row_bytes) {
  move<false>(stream, runs, destination, destination_stride, packed, row_bytes);
}

void add_rows(const Stream& stream, const RowRuns& runs, const void* packed, DType type, float* accumulator,
              std::size_t accumulator_stride, std::int64_t row_elements) {
  const AddRows a{runs, reinterpret_cast<char*>(accumulator), static_cast<const char*>(packed),
                  static_cast<std::int64_t>(accumulator_stride), row_elements};
  if (type == DType::f32) {
    add<F32>(stream, a);
  } else if (type == DType::bf16) {
    add<Bf16>(stream, a);
  } else {
    throw Error(ErrorCode::invalid_argument, std::string("add_rows: rows of ") + to_string(type) + " cannot be added");
  }
}

}  // namespace tandem::detail::cuda

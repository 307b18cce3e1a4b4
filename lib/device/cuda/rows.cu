// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <string>

#include "device/cuda/bf16.cuh"
#include "device/cuda/check.hpp"
#include "device/cuda/preload.hpp"
#include "device/cuda/rows.hpp"

namespace tandem::detail::cuda {
namespace {

constexpr int block_threads = 256;
constexpr std::int64_t most_blocks = 2048;  // more than any GPU runs at once; blocks stride over what is left
constexpr std::size_t most_moves = 8;

// The last of `count` runs whose `key` is not above `value`; the first if there is none.
template <std::int64_t RowRun::*key>
__device__ const RowRun& run_of(const RowRun* runs, std::int64_t count, std::int64_t value) {
  std::int64_t low = 0;
  for (std::int64_t high = count; high - low > 1;) {
    const std::int64_t middle = low + (high - low) / 2;
    if (runs[middle].*key <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return runs[low];
}

// threadIdx.x runs along a row, threadIdx.y over the rows of a block.
template <class Body>
__device__ void for_each_row(std::int64_t rows, const Body& body) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.y;
  for (std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows; row += step) body(row);
}

struct MoveRows {
  RowRuns runs;
  RowMove moves[most_moves];
};

template <class Unit>
__global__ void __launch_bounds__(block_threads) move_units(MoveRows m) {
  const RowMove& move = m.moves[blockIdx.y];
  const auto units = static_cast<std::int64_t>(move.row_bytes / sizeof(Unit));
  for_each_row(m.runs.rows, [&](std::int64_t row) {
    const RowRun& run = run_of<&RowRun::begin>(m.runs.runs, m.runs.count, row);
    const std::int64_t i = row - run.begin;
    const Unit* __restrict__ const from = reinterpret_cast<const Unit*>(
        static_cast<const char*>(move.from) + (run.from + i) * static_cast<std::int64_t>(move.from_stride));
    Unit* __restrict__ const to =
        reinterpret_cast<Unit*>(static_cast<char*>(move.to) + (run.to + i) * static_cast<std::int64_t>(move.to_stride));
#pragma unroll 4
    for (std::int64_t u = threadIdx.x; u < units; u += blockDim.x) to[u] = from[u];
  });
}

// `width` floats at a time, from and to memory of either type.
template <int width>
struct Floats {
  float at[width];
};

template <class Type, int width>
__device__ Floats<width> load(const void* base, std::int64_t element) {
  const char* const at = static_cast<const char*>(base) + element * static_cast<std::int64_t>(sizeof(Type));
  Floats<width> out;
  if constexpr (sizeof(Type) == 4 && width == 4) {
    [[maybe_unused]] const float4 v = *reinterpret_cast<const float4*>(at);
    out = {{v.x, v.y, v.z, v.w}};
  } else if constexpr (sizeof(Type) == 4) {
    out.at[0] = *reinterpret_cast<const float*>(at);
  } else if constexpr (width == 4) {
    // A bfloat16 is the upper half of a binary32.
    const uint2 v = *reinterpret_cast<const uint2*>(at);
    out = {{__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000U), __uint_as_float(v.y << 16),
            __uint_as_float(v.y & 0xFFFF0000U)}};
  } else {
    out.at[0] = __uint_as_float(static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(at)) << 16);
  }
  return out;
}

template <class Type, int width>
__device__ void store(void* base, std::int64_t element, const Floats<width>& v) {
  char* const at = static_cast<char*>(base) + element * static_cast<std::int64_t>(sizeof(Type));
  if constexpr (sizeof(Type) == 4 && width == 4) {
    *reinterpret_cast<float4*>(at) = {v.at[0], v.at[1], v.at[2], v.at[3]};
  } else if constexpr (sizeof(Type) == 4) {
    *reinterpret_cast<float*>(at) = v.at[0];
  } else if constexpr (width == 4) {
    *reinterpret_cast<uint2*>(at) = {bf16_from_float(v.at[0]) | (bf16_from_float(v.at[1]) << 16),
                                     bf16_from_float(v.at[2]) | (bf16_from_float(v.at[3]) << 16)};
  } else {
    *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(bf16_from_float(v.at[0]));
  }
}

template <int width>
__device__ void add(Floats<width>& sum, const Floats<width>& v) {
#pragma unroll
  for (int i = 0; i < width; ++i) sum.at[i] = __fadd_rn(sum.at[i], v.at[i]);
}

struct RoundRows {
  RowRuns runs;
  RowRounding rounding;
};

template <int width>
__global__ void __launch_bounds__(block_threads) round_to_bf16(RoundRows m) {
  const RowRounding& r = m.rounding;
  for_each_row(m.runs.rows, [&](std::int64_t row) {
    const RowRun& run = run_of<&RowRun::begin>(m.runs.runs, m.runs.count, row);
    const std::int64_t i = row - run.begin;
    const char* const from =
        reinterpret_cast<const char*>(r.from) + (run.from + i) * static_cast<std::int64_t>(r.from_stride);
    unsigned short* const to = reinterpret_cast<unsigned short*>(r.to) + (run.to + i) * r.elements;
    for (std::int64_t e = std::int64_t{threadIdx.x} * width; e < r.elements; e += std::int64_t{blockDim.x} * width) {
      store<unsigned short, width>(to, e, load<float, width>(from, e));
    }
  });
}

template <class Wire, class Result, int width>
__global__ void __launch_bounds__(block_threads) sum_contributions(RowSum s) {
  for_each_row(s.rows, [&](std::int64_t i) {
    const std::int64_t row = s.first_row + i;
    char* const to = static_cast<char*>(s.result) + row * static_cast<std::int64_t>(s.result_stride);
    for (std::int64_t e = std::int64_t{threadIdx.x} * width; e < s.elements; e += std::int64_t{blockDim.x} * width) {
      Floats<width> sum{};
      for (std::int64_t a = 0; a < s.addend_count; ++a) {
        const RowAddend& addend = s.addends[a];
        if (addend.runs == 0) continue;
        const RowRun& run = run_of<&RowRun::to>(s.runs + addend.first_run, addend.runs, row);
        if (row < run.to || row >= run.to + run.rows) continue;
        add(sum, load<Wire, width>(static_cast<const char*>(s.staging) + addend.offset,
                                   (run.from + row - run.to) * s.elements + e));
      }
      if (s.own_runs.count > 0) {
        const RowRun& run = run_of<&RowRun::to>(s.own_runs.runs, s.own_runs.count, row);
        if (row >= run.to && row < run.to + run.rows) {
          const char* const own = reinterpret_cast<const char*>(s.own) +
                                  (run.from + row - run.to) * static_cast<std::int64_t>(s.own_stride);
          add(sum, load<float, width>(own, e));
        }
      }
      store<Result, width>(to, e, sum);
    }
  });
}

using Half = unsigned short;

const bool registered =
    register_kernel(move_units<uint4>) && register_kernel(move_units<uint2>) && register_kernel(move_units<unsigned>) &&
    register_kernel(move_units<unsigned short>) && register_kernel(move_units<unsigned char>) &&
    register_kernel(round_to_bf16<4>) && register_kernel(round_to_bf16<1>) &&
    register_kernel(sum_contributions<float, float, 4>) && register_kernel(sum_contributions<float, float, 1>) &&
    register_kernel(sum_contributions<float, Half, 4>) && register_kernel(sum_contributions<float, Half, 1>) &&
    register_kernel(sum_contributions<Half, float, 4>) && register_kernel(sum_contributions<Half, float, 1>) &&
    register_kernel(sum_contributions<Half, Half, 4>) && register_kernel(sum_contributions<Half, Half, 1>);

std::uint64_t bits_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

// `units` is how many accesses a row takes. Short rows share a warp, long ones get a block.
template <class Argument>
void launch(const NativeStream& stream, void (*kernel)(Argument), Argument argument, std::int64_t rows,
            std::int64_t units, unsigned layers = 1) {
  std::int64_t along = 32;
  if (units < 32) along = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(units)));
  if (units >= 4 * block_threads) along = block_threads;
  const std::int64_t across = block_threads / along;
  const std::int64_t blocks = std::min((rows + across - 1) / across, most_blocks);
  void* arguments[] = {&argument};
  check(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks), layers),
                       dim3(static_cast<unsigned>(along), static_cast<unsigned>(across)), arguments, 0, stream.handle),
      "cudaLaunchKernel", stream.context.ordinal);
}

void check_aligned(const char* what, std::uint64_t bits, std::uint64_t size) {
  if (bits % size == 0) return;
  throw Error(ErrorCode::invalid_argument,
              std::string(what) + ": an address or stride is not a multiple of its element's size");
}

std::uint64_t bytes_of(const char* what, DType type) {
  if (type == DType::f32) return 4;
  if (type == DType::bf16) return 2;
  throw Error(ErrorCode::invalid_argument, std::string(what) + ": rows of " + to_string(type) + " cannot be added");
}

}  // namespace

void move_rows(const NativeStream& stream, const RowRuns& runs, std::span<const RowMove> moves) {
  if (runs.rows == 0) return;
  const DeviceGuard guard(stream.context);
  for (std::size_t first = 0; first < moves.size(); first += most_moves) {
    MoveRows m{runs, {}};
    const std::size_t count = std::min(most_moves, moves.size() - first);
    std::uint64_t bits = 16;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const RowMove& move = m.moves[i] = moves[first + i];
      bits |= bits_of(move.from) | move.from_stride | bits_of(move.to) | move.to_stride | move.row_bytes;
      longest = std::max(longest, move.row_bytes);
    }
    if (longest == 0) continue;
    // The largest power of two that divides all of them, up to 16.
    const std::uint64_t unit = bits & (~bits + 1);
    void (*kernel)(MoveRows) = move_units<unsigned char>;
    if (unit == 2) kernel = move_units<unsigned short>;
    if (unit == 4) kernel = move_units<unsigned>;
    if (unit == 8) kernel = move_units<uint2>;
    if (unit == 16) kernel = move_units<uint4>;
    launch(stream, kernel, m, runs.rows, static_cast<std::int64_t>(longest / unit), static_cast<unsigned>(count));
  }
}

void round_rows(const NativeStream& stream, const RowRuns& runs, const RowRounding& rounding) {
  if (runs.rows == 0 || rounding.elements == 0) return;
  const std::uint64_t from = bits_of(rounding.from) | rounding.from_stride;
  check_aligned("round_rows", from, 4);
  check_aligned("round_rows", bits_of(rounding.to), 2);
  const DeviceGuard guard(stream.context);
  const bool wide = from % 16 == 0 && bits_of(rounding.to) % 8 == 0 && rounding.elements % 4 == 0;
  launch(stream, wide ? round_to_bf16<4> : round_to_bf16<1>, RoundRows{runs, rounding}, runs.rows,
         wide ? rounding.elements / 4 : rounding.elements);
}

void sum_rows(const NativeStream& stream, const RowSum& sum) {
  const std::uint64_t wire = bytes_of("sum_rows", sum.wire);
  const std::uint64_t result = bytes_of("sum_rows", sum.result_type);
  if (sum.rows == 0 || sum.elements == 0) return;
  const std::uint64_t own_bits = bits_of(sum.own) | sum.own_stride;
  const std::uint64_t result_bits = bits_of(sum.result) | sum.result_stride;
  check_aligned("sum_rows", own_bits, 4);
  check_aligned("sum_rows", result_bits, result);
  check_aligned("sum_rows", bits_of(sum.staging), wire);
  const DeviceGuard guard(stream.context);
  // Offsets of addends are multiples of 256.
  const bool wide =
      own_bits % 16 == 0 && result_bits % (4 * result) == 0 && bits_of(sum.staging) % 16 == 0 && sum.elements % 4 == 0;
  void (*kernel)(RowSum) = nullptr;
  if (sum.wire == DType::f32) {
    kernel = sum.result_type == DType::f32
                 ? (wide ? sum_contributions<float, float, 4> : sum_contributions<float, float, 1>)
                 : (wide ? sum_contributions<float, Half, 4> : sum_contributions<float, Half, 1>);
  } else {
    kernel = sum.result_type == DType::f32
                 ? (wide ? sum_contributions<Half, float, 4> : sum_contributions<Half, float, 1>)
                 : (wide ? sum_contributions<Half, Half, 4> : sum_contributions<Half, Half, 1>);
  }
  launch(stream, kernel, sum, sum.rows, wide ? sum.elements / 4 : sum.elements);
}

}  // namespace tandem::detail::cuda

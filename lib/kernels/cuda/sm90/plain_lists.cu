// SPDX-License-Identifier: Apache-2.0
#include "plain_lists.hpp"

namespace tandem::detail::sm90 {
namespace {

constexpr int warps = 8;

/// A warp for each row, 128 entries at a time.
__global__ void __launch_bounds__(32 * warps) plain_lists(PlainListsArgs a) {
  const std::int64_t row = a.row_begin + static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (row >= a.row_end) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int32_t* list = a.indices + row * a.topk;
  const std::int32_t length = a.length[row];
  bool plain = length >= 0 && length <= a.topk;
  std::int32_t before = -1;  // the entry in front of those that the warp looks at
  for (int first = 0; plain && first < length; first += 128) {
    std::int32_t last = before;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int i = first + 32 * part + lane;
      const std::int32_t key = i < length ? list[i] : 0x7FFFFFFF;
      std::int32_t left = __shfl_up_sync(0xFFFFFFFFU, key, 1);
      if (lane == 0) left = last;
      plain = plain && (i >= length || (key > left && key < a.keys));
      last = __shfl_sync(0xFFFFFFFFU, key, 31);
    }
    before = last;
    plain = __all_sync(0xFFFFFFFFU, plain) != 0;
  }
  if (lane != 0) return;
  a.plain_length[row] = plain ? length : 0;
  a.other[row] = plain ? 0 : 1;
  if (!plain) a.others[atomicAdd(a.other_count, 1)] = static_cast<std::int32_t>(row);
}

}  // namespace

cudaError_t launch_plain_lists(const PlainListsArgs& args, cudaStream_t stream) {
  const std::int64_t rows = args.row_end - args.row_begin;
  const cudaError_t error = cudaMemsetAsync(args.other_count, 0, sizeof(std::int32_t), stream);
  if (error != cudaSuccess || rows == 0) return error;
  plain_lists<<<static_cast<unsigned>((rows + warps - 1) / warps), 32 * warps, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t load_plain_lists_kernel() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, plain_lists);
}

}  // namespace tandem::detail::sm90

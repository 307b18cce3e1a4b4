// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "sparse_forward_narrow.cuh"
#include "sparse_forward_wide.cuh"
#include "tensor_map.hpp"

namespace tandem::detail::sm90 {
namespace {

using Kernel = void (*)(SparseForwardParams);

struct Variant {
  Kernel kernel;
  int threads, shared_bytes, heads;  ///< heads of a work item
};

template <int Slices>
Variant wide_variant() {
  static_assert(sizeof(WideShared<Slices>) <= 227 * 1024);
  return {sparse_forward_wide_kernel<Slices>, wide_threads, sizeof(WideShared<Slices>), wide_heads};
}
template <int Heads, int Slices>
Variant narrow_variant() {
  static_assert(sizeof(NarrowShared<Heads, Slices>) <= 227 * 1024);
  return {sparse_forward_narrow_kernel<Heads, Slices>, narrow_threads, sizeof(NarrowShared<Heads, Slices>), Heads};
}

Variant variant_of(int heads, int dim) {
  const bool rope = dim == 576;
  if (heads <= 8) return rope ? narrow_variant<8, 9>() : narrow_variant<8, 8>();
  if (heads <= 16) return rope ? narrow_variant<16, 9>() : narrow_variant<16, 8>();
  if (heads <= 32) return rope ? narrow_variant<32, 9>() : narrow_variant<32, 8>();
  return rope ? wide_variant<9>() : wide_variant<8>();
}

/// Allows the shared memory, which also loads the kernel.
cudaError_t prepare(const Variant& variant) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(variant.kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, variant.shared_bytes);
}

bool supported(const SparseForwardArgs& args) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  return args.heads >= 1 && (args.dim == 576 || args.dim == 512) && args.topk >= 64 && args.topk <= 8192 &&
         args.topk % 64 == 0 && args.queries >= 0 && args.queries <= most && args.keys >= 0 && args.keys <= most &&
         args.scale >= 0.0F;
}

}  // namespace

cudaError_t launch_sparse_forward(const SparseForwardArgs& args, cudaStream_t stream) {
  if (!supported(args)) return cudaErrorInvalidValue;
  if (args.queries == 0) return cudaSuccess;
  const auto or_dense = [](std::int64_t stride, std::int64_t dense) { return stride != 0 ? stride : dense; };
  const Variant variant = variant_of(args.heads, args.dim);
  SparseForwardParams p{};
  const std::int64_t head_stride = or_dense(args.q_head_stride, args.dim);
  const std::int64_t row_stride = or_dense(args.q_row_stride, args.heads * head_stride);
  cudaError_t error =
      make_head_map(p.q_map, args.q, args.queries, args.heads, args.dim, row_stride, head_stride, variant.heads);
  if (error != cudaSuccess) return error;
  p.kv = static_cast<const std::uint8_t*>(args.kv);
  p.kv_row_bytes = or_dense(args.kv_row_stride, args.dim) * 2;
  p.keys = static_cast<std::uint32_t>(args.keys);
  p.indices = args.indices;
  p.length = args.length;
  p.sink = args.sink;
  // Not 0, which would make NaN of what is masked with -infinity.
  p.scale_log2 = std::max(args.scale * log2_e, std::numeric_limits<float>::min());
  p.out = static_cast<std::uint16_t*>(args.out);
  p.out_head_stride = or_dense(args.out_head_stride, 512);
  p.out_row_stride = or_dense(args.out_row_stride, args.heads * p.out_head_stride);
  p.lse = args.lse;
  p.heads = args.heads;
  p.head_blocks = (args.heads + variant.heads - 1) / variant.heads;
  p.topk = args.topk;
  p.items = args.queries * p.head_blocks;
  int device = 0, blocks = 0;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = prepare(variant);
  if (error != cudaSuccess) return error;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(blocks, p.items));
  variant
      .kernel<<<grid, static_cast<unsigned>(variant.threads), static_cast<std::size_t>(variant.shared_bytes), stream>>>(
          p);
  return cudaGetLastError();
}

cudaError_t load_sparse_forward_kernels() {
  for (const int heads : {8, 16, 32, 64}) {
    for (const int dim : {512, 576}) {
      if (const cudaError_t error = prepare(variant_of(heads, dim)); error != cudaSuccess) return error;
    }
  }
  return find_encode() != nullptr ? cudaSuccess : cudaErrorNotSupported;
}

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "indexer_loss_matrix.cuh"

namespace tandem::detail::sm90 {
namespace {

struct Variant {
  void (*kernel)(IndexerLossParams);
  int (*bytes)(int topk, int stages);
};

template <int Heads, bool E4m3>
Variant variant(bool gradients) {
  using Shared = IndexerLossShared<Heads, E4m3>;
  static_assert(sizeof(Shared) + 2 * index_tile_bytes + 8192 * sizeof(float) <= loss_block_bytes);
  return {gradients ? indexer_loss_kernel<Heads, E4m3, true> : indexer_loss_kernel<Heads, E4m3, false>, Shared::bytes};
}
template <int Heads>
Variant variant(bool e4m3, bool gradients) {
  return e4m3 ? variant<Heads, true>(gradients) : variant<Heads, false>(gradients);
}
Variant variant_of(int heads, bool e4m3, bool gradients) {
  if (heads == 8) return variant<8>(e4m3, gradients);
  if (heads == 16) return variant<16>(e4m3, gradients);
  return heads == 32 ? variant<32>(e4m3, gradients) : variant<64>(e4m3, gradients);
}

/// Allows the shared memory, which also loads the kernel.
cudaError_t prepare(const Variant& variant) {
  const auto* const kernel = reinterpret_cast<const void*>(variant.kernel);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, loss_block_bytes);
  if (error != cudaSuccess) return error;
  // For two blocks at a time.
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

bool supported(const IndexerLossArgs& args) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const bool known = args.heads == 8 || args.heads == 16 || args.heads == 32 || args.heads == 64;
  return known && args.topk >= 64 && args.topk <= 8192 && args.topk % tile_rows == 0 && args.keys >= 0 &&
         args.keys <= most && args.row_begin >= 0 && args.row_begin <= args.row_end && args.row_end <= most &&
         args.e4m3 == (args.k_scale != nullptr);
}

IndexerLossParams params_of(const IndexerLossArgs& args) {
  IndexerLossParams p{};
  p.q = static_cast<const std::uint8_t*>(args.q);
  p.w = args.w;
  p.k = static_cast<const std::uint8_t*>(args.k);
  p.k_scale = args.k_scale;
  p.keys = static_cast<std::uint32_t>(args.keys);
  p.indices = args.indices;
  p.length = args.length;
  p.head_sums = args.head_sums;
  p.head_sums_stride = args.head_sums_stride != 0 ? args.head_sums_stride : args.topk;
  p.first_row = args.row_begin;
  p.rows = args.row_end - args.row_begin;
  p.loss_scale = args.loss_scale;
  p.score_scale = args.loss_scale * args.upstream;
  p.loss = args.loss;
  p.d_index_q = args.d_index_q;
  p.d_index_w = args.d_index_w;
  p.d_index_k = args.d_index_k;
  p.topk = args.topk;
  p.relu = args.relu;
  return p;
}

}  // namespace

cudaError_t launch_indexer_loss(const IndexerLossArgs& args, cudaStream_t stream) {
  if (!supported(args)) return cudaErrorInvalidValue;
  if (args.row_begin == args.row_end) return cudaSuccess;
  const bool gradients = args.d_index_q != nullptr || args.d_index_w != nullptr || args.d_index_k != nullptr;
  const Variant variant = variant_of(args.heads, args.e4m3, gradients);
  IndexerLossParams p = params_of(args);
  p.stages = most_loss_stages;
  while (variant.bytes(args.topk, p.stages) > loss_block_bytes) --p.stages;
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = prepare(variant);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(2 * multiprocessors, p.rows));
  const auto bytes = static_cast<std::size_t>(variant.bytes(args.topk, p.stages));
  variant.kernel<<<blocks, loss_threads, bytes, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t load_indexer_loss_kernels() {
  for (const int heads : {8, 16, 32, 64}) {
    for (const bool e4m3 : {false, true}) {
      for (const bool gradients : {false, true}) {
        if (const cudaError_t error = prepare(variant_of(heads, e4m3, gradients)); error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "indexer_launch.hpp"
#include "indexer_sort.cuh"
#include "indexer_tiles.cuh"
#include "tensor_map.hpp"

namespace tandem::detail::sm90 {
namespace {

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

struct Geometry {
  int blocks = 0;  ///< one a multiprocessor
  int rows = 0;    ///< of a query tile
  int list_capacity = 0;
  std::size_t tiles_at = 0, segments_at = 0, lists_at = 0, bytes = 0;
};

bool supported(const IndexerArgs& args) {
  const bool heads = args.heads == 8 || args.heads == 16 || args.heads == 32 || args.heads == 64;
  if (args.dtype == IndexerDtype::scores && args.heads != 64) return false;
  return heads && args.topk >= 64 && args.topk <= 8192 && args.topk % 64 == 0 && args.row_count >= 0 &&
         args.keys >= 0 && args.keys < std::numeric_limits<std::int32_t>::max() - tile_keys;
}

cudaError_t geometry_of(const IndexerArgs& args, Geometry& g) {
  if (!supported(args)) return cudaErrorInvalidValue;
  int device = 0, blocks = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const cudaError_t error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  g.rows = tile_columns / args.heads;
  const int tiles = (args.row_count + g.rows - 1) / g.rows;
  g.blocks = std::max(1, std::min(blocks, tiles));
  // Random scores bring about K (1 + ln(keys / K)) entries: a list that has room for them is never cut on the way.
  // Where rows are many and K is large lists are shorter, then blocks fewer.
  constexpr std::size_t most_bytes = 450'000'000;
  const int block_keys = most_block_keys(g.rows);
  const std::size_t segments_bytes =
      static_cast<std::size_t>(block_buffers_for(g.rows) * block_keys) * sizeof(std::uint64_t);
  const auto tile_row_bytes = most_bytes / static_cast<std::size_t>(g.blocks * g.rows);
  const auto room =
      static_cast<int>((std::max(tile_row_bytes, segments_bytes) - segments_bytes) / (2 * sizeof(std::uint64_t)));
  const int least = args.topk + std::min(args.topk, 2048) + block_keys;
#ifdef TANDEM_INDEXER_STRESS
  g.list_capacity = least;
#else
  g.list_capacity = std::max(least, std::min(6 * args.topk + block_keys, room)) / 2 * 2;
#endif
  const std::size_t list_bytes = 2 * static_cast<std::size_t>(g.list_capacity) * sizeof(std::uint64_t);
  const std::size_t row_bytes = segments_bytes + list_bytes;
  const auto affordable = static_cast<int>(most_bytes / (row_bytes * static_cast<std::size_t>(g.rows)));
  g.blocks = std::max(1, std::min(g.blocks, affordable));
  const auto tile_rows = static_cast<std::size_t>(g.blocks) * static_cast<std::size_t>(g.rows);
  g.tiles_at = 256;
  g.segments_at = g.tiles_at + aligned(static_cast<std::size_t>(tiles) * sizeof(QueryTile));
  g.lists_at = g.segments_at + aligned(tile_rows * segments_bytes);
  g.bytes = g.lists_at + aligned(tile_rows * list_bytes);
  return cudaSuccess;
}

/// A [rows, 128] tensor in boxes of tile_keys rows of 128 bytes.
cudaError_t make_map(CUtensorMap& map, const void* data, std::int64_t rows, bool bf16) {
  const EncodeTiled encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t size[2] = {128, static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {bf16 ? 256U : 128U};
  const cuuint32_t box[2] = {bf16 ? 64U : 128U, tile_keys};
  const cuuint32_t step[2] = {1, 1};
  const CUresult result =
      encode(&map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data),
             size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <IndexerDtype Dtype, int Heads, bool Select>
constexpr int shared_bytes() {
  constexpr int bytes = static_cast<int>(sizeof(IndexerShared<Dtype, Heads>));
  static_assert(bytes <= 227 * 1024);
  return bytes;
}

/// Allows the shared memory, which also loads the kernel.
template <IndexerDtype Dtype, int Heads, bool Select>
cudaError_t prepare() {
  return cudaFuncSetAttribute(&indexer_kernel<Dtype, Heads, Select>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_bytes<Dtype, Heads, Select>());
}

template <IndexerDtype Dtype, int Heads, bool Select>
cudaError_t launch_as(const IndexerParams& params, const Geometry& g, cudaStream_t stream) {
  if (const cudaError_t error = prepare<Dtype, Heads, Select>(); error != cudaSuccess) return error;
  query_tiles_kernel<tile_columns / Heads><<<1, 1024, 0, stream>>>(params);
  indexer_kernel<Dtype, Heads, Select>
      <<<static_cast<unsigned>(g.blocks), indexer_threads, shared_bytes<Dtype, Heads, Select>(), stream>>>(params);
  return cudaGetLastError();
}

/// Calls fn.operator()<Dtype, Heads>() for the heads of a launch.
template <IndexerDtype Dtype, typename Fn>
cudaError_t with_heads(int heads, Fn fn) {
  switch (heads) {
#ifndef TANDEM_INDEXER_HEADS64_ONLY
    case 8:
      return fn.template operator()<Dtype, 8>();
    case 16:
      return fn.template operator()<Dtype, 16>();
    case 32:
      return fn.template operator()<Dtype, 32>();
#endif
    case 64:
      return fn.template operator()<Dtype, 64>();
    default:
      return cudaErrorInvalidValue;
  }
}

template <bool Select>
cudaError_t dispatch(const IndexerArgs& args, const IndexerParams& params, const Geometry& g, cudaStream_t stream) {
  const auto run = [&]<IndexerDtype Dtype, int Heads>() { return launch_as<Dtype, Heads, Select>(params, g, stream); };
  switch (args.dtype) {
    case IndexerDtype::bf16:
      return with_heads<IndexerDtype::bf16>(args.heads, run);
    case IndexerDtype::e4m3:
      return with_heads<IndexerDtype::e4m3>(args.heads, run);
    case IndexerDtype::scores:
      return launch_as<IndexerDtype::scores, 64, true>(params, g, stream);
  }
  return cudaErrorInvalidValue;
}

/// Allows the shared memory, which also loads the kernel.
cudaError_t prepare_sort() {
  return cudaFuncSetAttribute(sort_lists_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sort_shared_bytes_most);
}

cudaError_t sort_lists(const IndexerParams& p, int rows, cudaStream_t stream) {
  if (const cudaError_t error = prepare_sort(); error != cudaSuccess) return error;
  const int words = sort_words_for(p.keys);
  const auto shared_bytes = static_cast<std::size_t>(words + p.topk) * sizeof(std::uint32_t);
  sort_lists_kernel<<<static_cast<unsigned>(rows), sort_threads, shared_bytes, stream>>>(p, words);
  return cudaGetLastError();
}

template <bool Select>
cudaError_t launch(const IndexerArgs& args, cudaStream_t stream) {
  Geometry g;
  if (const cudaError_t error = geometry_of(args, g); error != cudaSuccess) return error;
  if (args.row_count == 0) return cudaSuccess;
  if (args.scratch == nullptr || args.scratch_bytes < g.bytes) return cudaErrorInvalidValue;
  IndexerParams p{};
  if (args.dtype != IndexerDtype::scores && args.keys > 0) {
    const bool bf16 = args.dtype == IndexerDtype::bf16;
    if (const cudaError_t error = make_map(p.k_map, args.k, args.keys, bf16); error != cudaSuccess) return error;
  }
  p.q = static_cast<const std::uint8_t*>(args.q);
  p.w = args.w;
  p.k_scale = args.k_scale;
  p.scores = args.scores;
  p.key_begin = args.key_begin;
  p.key_end = args.key_end;
  p.bounds_stride = args.bounds_stride;
  p.rows = args.rows;
  p.key_ranges = args.key_ranges;
  p.key_range_count = args.key_ranges != nullptr ? args.key_range_count : 1;
  p.row_count = args.row_count;
  p.keys = static_cast<std::int32_t>(args.keys);
  p.topk = args.topk;
  p.list_capacity = g.list_capacity;
  p.relu_floor = args.relu ? 0.0F : -std::numeric_limits<float>::infinity();
  p.first = args.first;
  p.last = args.last;
  p.state_scores = args.state_scores;
  p.state_indices = args.state_indices;
  p.state_length = args.state_length;
  p.indices = args.indices;
  p.length = args.length;
  p.nan_count = reinterpret_cast<unsigned long long*>(args.nan_count);
  p.index_lse = args.index_lse;
  auto* scratch = static_cast<std::byte*>(args.scratch);
  p.counters = reinterpret_cast<std::int32_t*>(scratch);
  p.tiles = reinterpret_cast<QueryTile*>(scratch + g.tiles_at);
  p.segments = reinterpret_cast<std::uint64_t*>(scratch + g.segments_at);
  p.lists = reinterpret_cast<std::uint64_t*>(scratch + g.lists_at);
  take_all_kernel<<<static_cast<unsigned>((args.row_count + 7) / 8), 256, 0, stream>>>(p);
  if (const cudaError_t error = dispatch<Select>(args, p, g, stream); error != cudaSuccess || !Select) return error;
  return p.last ? sort_lists(p, args.row_count, stream) : cudaSuccess;
}

}  // namespace

std::size_t indexer_scratch_bytes(const IndexerArgs& args) {
  Geometry g;
  return geometry_of(args, g) == cudaSuccess ? g.bytes : 0;
}

cudaError_t launch_indexer(const IndexerArgs& args, cudaStream_t stream) { return launch<true>(args, stream); }

cudaError_t load_indexer_kernels() {
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaFuncGetAttributes(&attributes, take_all_kernel);
  if (error == cudaSuccess) error = prepare_sort();
  const auto load = [&]<IndexerDtype Dtype, int Heads>() {
    const cudaError_t found = cudaFuncGetAttributes(&attributes, query_tiles_kernel<tile_columns / Heads>);
    return found == cudaSuccess ? prepare<Dtype, Heads, true>() : found;
  };
  for (const int heads : {8, 16, 32, 64}) {
    if (error == cudaSuccess) error = with_heads<IndexerDtype::bf16>(heads, load);
    if (error == cudaSuccess) error = with_heads<IndexerDtype::e4m3>(heads, load);
  }
  return error == cudaSuccess && find_encode() == nullptr ? cudaErrorNotSupported : error;
}

cudaError_t launch_indexer_scores_only(const IndexerArgs& args, cudaStream_t stream) {
  return args.dtype == IndexerDtype::scores ? cudaErrorInvalidValue : launch<false>(args, stream);
}

}  // namespace tandem::detail::sm90

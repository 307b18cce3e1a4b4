// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "sparse_backward_keys.cuh"
#include "sparse_backward_ordered.cuh"
#include "sparse_backward_queries.cuh"
#include "sparse_backward_statistics.cuh"
#include "tensor_map.hpp"

namespace tandem::detail::sm90 {
namespace {

using Kernel = void (*)(SparseBackwardParams);

struct Pass {
  Kernel kernel;
  int threads, shared_bytes;
};

template <int Slices>
Pass query_pass() {
  static_assert(sizeof(QueryPassShared<Slices>) <= 227 * 1024);
  return {sparse_backward_queries_kernel<Slices>, query_pass_threads, sizeof(QueryPassShared<Slices>)};
}
template <int HeadBlocks, int Slices>
Pass key_pass(bool ordered) {
  static_assert(sizeof(KeyPassShared<HeadBlocks>) <= 227 * 1024);
  const Kernel kernel = ordered ? sparse_backward_keys_kernel<HeadBlocks, Slices, true>
                                : sparse_backward_keys_kernel<HeadBlocks, Slices, false>;
  return {kernel, key_pass_threads, sizeof(KeyPassShared<HeadBlocks>)};
}

Pass query_pass_of(int dim) { return dim == 576 ? query_pass<9>() : query_pass<8>(); }
Pass key_pass_of(int head_blocks, int dim, bool ordered) {
  if (head_blocks == 1) return dim == 576 ? key_pass<1, 9>(ordered) : key_pass<1, 8>(ordered);
  return dim == 576 ? key_pass<2, 9>(ordered) : key_pass<2, 8>(ordered);
}
Kernel ordered_kernel_of(int dim) {
  return dim == 576 ? sparse_backward_ordered_kernel<9> : sparse_backward_ordered_kernel<8>;
}

/// Allows the shared memory, which also loads the kernel.
cudaError_t prepare(const Pass& pass) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(pass.kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              pass.shared_bytes);
}

bool supported(const SparseBackwardArgs& args) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  return args.heads >= 1 && args.heads <= 2 * block_heads && (args.dim == 576 || args.dim == 512) && args.topk >= 64 &&
         args.topk <= 8192 && args.topk % tile_rows == 0 && args.queries >= 0 && args.queries <= most &&
         args.keys >= 0 && args.keys <= most && args.row_begin >= 0 && args.row_begin <= args.row_end &&
         args.row_end <= args.queries;
}

int head_blocks_of(const SparseBackwardArgs& args) { return (args.heads + block_heads - 1) / block_heads; }

struct RowBytes {
  std::size_t weights, statistics, terms;
  std::size_t all() const { return weights + statistics + terms; }
};
RowBytes row_bytes(const SparseBackwardArgs& args) {
  const auto blocks = static_cast<std::size_t>(head_blocks_of(args));
  return {static_cast<std::size_t>(args.topk / tile_rows) * 2 * blocks * slice_bytes,
          blocks * block_pairs * sizeof(HeadPair),
          args.deterministic ? static_cast<std::size_t>(args.topk) * static_cast<std::size_t>(args.dim) * sizeof(float)
                             : 0};
}

/// Rows of dkv that stay in L2 beside what passes through: of Hopper's 50 MB.
constexpr std::int64_t resident_bytes = 40 * 1000 * 1000;
constexpr int far_visit_tiles = 4;

cudaError_t fill(SparseBackwardParams& p, const SparseBackwardArgs& args) {
  const auto or_dense = [](std::int64_t stride, std::int64_t dense) { return stride != 0 ? stride : dense; };
  const std::int64_t heads = args.heads;
  const std::int64_t q_head = or_dense(args.q_head_stride, args.dim);
  cudaError_t error = make_head_map(p.q_map, args.q, args.queries, heads, args.dim,
                                    or_dense(args.q_row_stride, heads * q_head), q_head, block_heads);
  if (error != cudaSuccess) return error;
  p.dout = static_cast<const std::uint16_t*>(args.dout);
  p.dout_head_stride = or_dense(args.dout_head_stride, 512);
  p.dout_row_stride = or_dense(args.dout_row_stride, heads * p.dout_head_stride);
  error = make_head_map(p.dout_map, args.dout, args.queries, heads, 512, p.dout_row_stride, p.dout_head_stride,
                        block_heads);
  if (error != cudaSuccess) return error;
  p.kv = static_cast<const std::uint8_t*>(args.kv);
  p.kv_row_bytes = or_dense(args.kv_row_stride, args.dim) * 2;
  p.keys = static_cast<std::uint32_t>(args.keys);
  p.indices = args.indices;
  p.length = args.length;
  p.scale = args.scale;
  p.scale_log2 = args.scale * log2_e;
  p.out = static_cast<const std::uint16_t*>(args.out);
  p.out_head_stride = or_dense(args.out_head_stride, 512);
  p.out_row_stride = or_dense(args.out_row_stride, heads * p.out_head_stride);
  p.lse = args.lse;
  p.sink = args.sink;
  p.dsink = args.sink != nullptr ? args.dsink : nullptr;
  p.dq = static_cast<std::uint16_t*>(args.dq);
  p.dq_head_stride = or_dense(args.dq_head_stride, args.dim);
  p.dq_row_stride = or_dense(args.dq_row_stride, heads * p.dq_head_stride);
  p.dkv = args.dkv;
  p.dkv_row_stride = or_dense(args.dkv_row_stride, args.dim);
  p.heads = args.heads;
  p.head_blocks = head_blocks_of(args);
  p.topk = args.topk;
  const int all_tiles = args.topk / tile_rows;
  // Terms are written once, wherever they lie.
  const bool far = !args.deterministic && args.keys * args.dim * std::int64_t{sizeof(float)} > resident_bytes;
  p.visit_tiles = args.tiles_per_visit > 0 ? args.tiles_per_visit : far ? far_visit_tiles : all_tiles;
  p.visit_tiles = std::min(p.visit_tiles, all_tiles);
  p.visits = (all_tiles + p.visit_tiles - 1) / p.visit_tiles;
  return cudaSuccess;
}

cudaError_t launch(const Pass& pass, std::int64_t blocks, const SparseBackwardParams& p, cudaStream_t stream) {
  pass.kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(pass.threads),
                static_cast<std::size_t>(pass.shared_bytes), stream>>>(p);
  return cudaGetLastError();
}

cudaError_t run_block(const SparseBackwardParams& p, const Pass& query_pass, const Pass& key_pass, int dim,
                      int multiprocessors, std::uint32_t passes, cudaStream_t stream) {
  const bool ordered = p.terms != nullptr;
  const dim3 grid(
      ordered && p.dsink != nullptr ? 1U : static_cast<unsigned>((p.rows + statistics_rows - 1) / statistics_rows),
      static_cast<unsigned>(p.head_blocks * block_heads));
  cudaError_t error = cudaSuccess;
  if ((passes & 1U) != 0) {
    sparse_backward_statistics_kernel<<<grid, statistics_threads, 0, stream>>>(p);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess && (passes & 2U) != 0) {
    error = launch(query_pass, std::min<std::int64_t>(multiprocessors, p.rows * p.head_blocks), p, stream);
  }
  if (error == cudaSuccess && (passes & 4U) != 0) {
    // An even number: see KeyPassItem.
    const std::int64_t most = std::max(2, multiprocessors / 2 * 2);
    error = launch(key_pass, std::min(most, 2 * p.rows * p.visits), p, stream);
    if (error == cudaSuccess && ordered && p.keys > 0) {
      const Pass sum{ordered_kernel_of(dim), ordered_threads, 0};
      error = launch(sum, (std::int64_t{p.keys} + ordered_warps - 1) / ordered_warps, p, stream);
    }
  }
  return error;
}

cudaError_t count_multiprocessors(int& count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess ? error : cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace

std::size_t sparse_backward_workspace_bytes(const SparseBackwardArgs& args, std::int64_t rows) {
  return static_cast<std::size_t>(rows) * row_bytes(args).all();
}

std::size_t sparse_backward_workspace_bytes(const SparseBackwardArgs& args) {
  int multiprocessors = 0;
  if (count_multiprocessors(multiprocessors) != cudaSuccess) multiprocessors = 132;
  const std::int64_t most = (args.deterministic ? 4 : 8) * multiprocessors / head_blocks_of(args);
  return sparse_backward_workspace_bytes(args, std::min<std::int64_t>(most, args.row_end - args.row_begin));
}

cudaError_t launch_sparse_backward(const SparseBackwardArgs& args, cudaStream_t stream) {
  if (!supported(args)) return cudaErrorInvalidValue;
  const std::int64_t rows = args.row_end - args.row_begin;
  if (rows == 0) return cudaSuccess;
  const RowBytes row = row_bytes(args);
  const auto rows_at_a_time = static_cast<std::int64_t>(args.workspace_bytes / row.all());
  if (rows_at_a_time == 0) return cudaErrorInvalidValue;
  SparseBackwardParams p{};
  int multiprocessors = 0;
  const Pass query_pass = query_pass_of(args.dim),
             key_pass = key_pass_of(head_blocks_of(args), args.dim, args.deterministic);
  cudaError_t error = fill(p, args);
  if (error == cudaSuccess) error = count_multiprocessors(multiprocessors);
  if (error == cudaSuccess) error = prepare(query_pass);
  if (error == cudaSuccess) error = prepare(key_pass);
  if (error == cudaSuccess && args.head_sums != nullptr) {
    error = cudaMemsetAsync(args.head_sums, 0, static_cast<std::size_t>(rows * args.topk) * sizeof(float), stream);
  }
  // Blocks of about the same size, so that the last one does not leave most of the GPU idle.
  const std::int64_t blocks = (rows + rows_at_a_time - 1) / rows_at_a_time;
  for (std::int64_t block = 0; error == cudaSuccess && block < blocks; ++block) {
    const std::int64_t first = rows * block / blocks;
    p.first_row = args.row_begin + first;
    p.rows = rows * (block + 1) / blocks - first;
    p.weights = static_cast<std::uint8_t*>(args.workspace);
    p.statistics = reinterpret_cast<HeadPair*>(p.weights + static_cast<std::size_t>(p.rows) * row.weights);
    p.terms =
        args.deterministic
            ? reinterpret_cast<float*>(p.weights + static_cast<std::size_t>(p.rows) * (row.weights + row.statistics))
            : nullptr;
    p.head_sums = args.head_sums != nullptr ? args.head_sums + first * args.topk : nullptr;
    error = run_block(p, query_pass, key_pass, args.dim, multiprocessors, args.passes, stream);
  }
  return error;
}

cudaError_t load_sparse_backward_kernels() {
  cudaFuncAttributes attributes{};
  cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(sparse_backward_statistics_kernel));
  for (const int dim : {512, 576}) {
    if (error == cudaSuccess) error = prepare(query_pass_of(dim));
    if (error == cudaSuccess) {
      error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(ordered_kernel_of(dim)));
    }
    for (const int head_blocks : {1, 2}) {
      for (const bool ordered : {false, true}) {
        if (error == cudaSuccess) error = prepare(key_pass_of(head_blocks, dim, ordered));
      }
    }
  }
  if (error != cudaSuccess) return error;
  return find_encode() != nullptr ? cudaSuccess : cudaErrorNotSupported;
}

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// The lightning indexer with fused streaming top-k on Hopper, as a launcher over device pointers: see
/// tandem/kernels.hpp (IndexerInputs, TopkLists, TopkState) for what it computes.
namespace tandem::detail::sm90 {

enum class IndexerDtype : std::uint8_t {
  bf16,
  e4m3,   ///< keys are scaled by k_scale; scales of queries are folded into w by the caller
  scores  ///< no matrix product: `scores` are given, which tests the selection alone
};

/// All pointers are device pointers; tensors are contiguous. q and k are aligned to 16 bytes, scratch to 128.
struct IndexerArgs {
  IndexerDtype dtype = IndexerDtype::bf16;
  std::int32_t heads = 0;  ///< Hi: 8, 16, 32 or 64; 64 with IndexerDtype::scores
  std::int32_t topk = 0;   ///< K: a multiple of 64 up to 8192
  bool relu = true;
  std::int64_t queries = 0;        ///< s
  std::int64_t keys = 0;           ///< n, below 2^31 - 64
  const void* q = nullptr;         ///< [s, Hi, 128]
  const float* w = nullptr;        ///< [s, Hi]
  const void* k = nullptr;         ///< [n, 128]
  const float* k_scale = nullptr;  ///< [n], e4m3 only
  const float* scores = nullptr;   ///< [s, n], IndexerDtype::scores only

  const std::int32_t* key_begin = nullptr;  ///< [s]: row t sees keys [key_begin[t], key_end[t])
  const std::int32_t* key_end = nullptr;    ///< [s]
  std::int32_t bounds_stride = 1;           ///< entries from one row's to the next's, of both
  const std::int32_t* rows = nullptr;       ///< [row_count] distinct local rows of the step; or null: 0, 1, ...
  std::int32_t row_count = 0;
  const std::int32_t* key_ranges = nullptr;  ///< [key_range_count, 2]: disjoint, ascending; or null: all keys
  std::int32_t key_range_count = 0;

  /// Carried state, numbered by place in `rows`. `first`: it starts empty; `last`: lists are written, else state is.
  bool first = true;
  bool last = true;
  float* state_scores = nullptr;          ///< [row_count, K]
  std::int32_t* state_indices = nullptr;  ///< [row_count, K], in no particular order
  std::int32_t* state_length = nullptr;   ///< [row_count]

  std::int32_t* indices = nullptr;    ///< [s, K]: entries of the step's rows are written
  std::int32_t* length = nullptr;     ///< [s]
  std::int64_t* nan_count = nullptr;  ///< [1]: added to
  /// [s] or null: ln of the sum of exp(score) over the selected keys. Rows that take all they see are then scored too
  /// (their NaN scores count neither here nor in nan_count).
  float* index_lse = nullptr;

  void* scratch = nullptr;
  std::size_t scratch_bytes = 0;
};

/// Scratch that a launch of these heads, topk and row_count needs on the current device; 0 if they are not supported.
std::size_t indexer_scratch_bytes(const IndexerArgs& args);

/// Enqueues on `stream`, allocates nothing and may be captured: all counters are set inside. Scratch must not be used
/// by another stream meanwhile; its contents do not matter.
cudaError_t launch_indexer(const IndexerArgs& args, cudaStream_t stream);

/// Makes the driver load the kernels now; loading waits for the device, which may be stuck behind a pending wait later.
cudaError_t load_indexer_kernels();

/// For measurements: everything but the selection. Lists are not written.
cudaError_t launch_indexer_scores_only(const IndexerArgs& args, cudaStream_t stream);

}  // namespace tandem::detail::sm90

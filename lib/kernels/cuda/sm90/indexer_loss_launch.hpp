// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// The sparse indexer loss and its gradients on Hopper, as a launcher over device pointers: see tandem/kernels.hpp
/// (IndexerInputs, LossSupport, IndexerLoss) for what it computes.
namespace tandem::detail::sm90 {

/// Device pointers, dense in memory; q, w, k, d_index_q and d_index_k are aligned to 16 bytes.
struct IndexerLossArgs {
  bool e4m3 = false;       ///< else bf16
  std::int32_t heads = 0;  ///< Hi: 8, 16, 32 or 64
  std::int32_t topk = 0;   ///< K: a multiple of 64 up to 8192
  bool relu = true;
  std::int64_t keys = 0;       ///< n, below 2^31
  std::int64_t row_begin = 0;  ///< rows of this call, within 0..s; others are neither read nor written
  std::int64_t row_end = 0;
  const void* q = nullptr;                ///< [s, Hi, 128]
  const float* w = nullptr;               ///< [s, Hi]
  const void* k = nullptr;                ///< [n, 128]
  const float* k_scale = nullptr;         ///< [n], of e4m3
  const std::int32_t* indices = nullptr;  ///< [s, K], distinct inside length; entries that are no row are ignored
  const std::int32_t* length = nullptr;   ///< [s]; outside 0..K it counts as 0
  const float* head_sums = nullptr;       ///< [row_end - row_begin, at least K]
  std::int64_t head_sums_stride = 0;      ///< 0: K
  double loss_scale = 1.0, upstream = 1.0;
  double* loss = nullptr;      ///< [s], or null like the next three
  void* d_index_q = nullptr;   ///< [s, Hi, 128]: bf16, f32 of e4m3
  float* d_index_w = nullptr;  ///< [s, Hi]
  float* d_index_k = nullptr;  ///< [n, 128], added to
};

/// Enqueues on `stream`, allocates nothing and may be captured. All but d_index_k has the same bits in every run.
cudaError_t launch_indexer_loss(const IndexerLossArgs& args, cudaStream_t stream);

/// Makes the driver load the kernels now; loading waits for the device, which may be stuck behind a pending wait later.
cudaError_t load_indexer_loss_kernels();

}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// Sparse MLA forward on Hopper, as a launcher over device pointers: see tandem/kernels.hpp (AttentionInputs,
/// AttentionOutputs) for what it computes. Entries of a list must be distinct; head sums are not computed.
namespace tandem::detail::sm90 {

/// Device pointers; strides in elements, multiples of 8; q, kv and out are aligned to 16 bytes.
struct SparseForwardArgs {
  std::int32_t heads = 0;                 ///< H, any number from 1; other than 8, 16, 32 or a multiple of 64 is padded
  std::int32_t dim = 576;                 ///< d: 576 or 512
  std::int32_t topk = 0;                  ///< K: a multiple of 64 up to 8192
  float scale = 1.0F;                     ///< not negative
  std::int64_t queries = 0;               ///< s, below 2^31
  std::int64_t keys = 0;                  ///< n, below 2^31
  const void* q = nullptr;                ///< bf16 [s, H, d]
  std::int64_t q_row_stride = 0;          ///< 0: H * d
  std::int64_t q_head_stride = 0;         ///< 0: d
  const void* kv = nullptr;               ///< bf16 [n, d]
  std::int64_t kv_row_stride = 0;         ///< 0: d
  const std::int32_t* indices = nullptr;  ///< [s, K], distinct inside length; entries that are no row are ignored
  const std::int32_t* length = nullptr;   ///< [s]; outside 0..K it counts as 0
  const float* sink = nullptr;            ///< [H], or null
  void* out = nullptr;                    ///< bf16 [s, H, 512]
  std::int64_t out_row_stride = 0;        ///< 0: H * 512
  std::int64_t out_head_stride = 0;       ///< 0: 512
  float* lse = nullptr;                   ///< [s, H]
};

/// Enqueues on `stream`, allocates nothing and may be captured. Results have the same bits in every run.
cudaError_t launch_sparse_forward(const SparseForwardArgs& args, cudaStream_t stream);

/// Makes the driver load the kernels now; loading waits for the device, which may be stuck behind a pending wait later.
cudaError_t load_sparse_forward_kernels();

}  // namespace tandem::detail::sm90

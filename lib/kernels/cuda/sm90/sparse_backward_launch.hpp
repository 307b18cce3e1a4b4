// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// Sparse MLA backward on Hopper, as a launcher over device pointers: see tandem/kernels.hpp (AttentionInputs,
/// AttentionGradients) for what it computes. Entries of a list must be distinct; for deterministic gradients also
/// ascend.
namespace tandem::detail::sm90 {

/// Device pointers; strides in elements, multiples of 8 (of dkv: of 4). Tensors but lists, lse, sink and dsink are
/// aligned to 16 bytes. Rows outside [row_begin, row_end) are neither read nor written.
struct SparseBackwardArgs {
  std::int32_t heads = 0;      ///< H, 1..128; other than 64 and 128 is padded
  std::int32_t dim = 576;      ///< d: 576 or 512
  std::int32_t topk = 0;       ///< K: a multiple of 64 up to 8192
  float scale = 1.0F;          ///< any finite number
  std::int64_t queries = 0;    ///< s, below 2^31
  std::int64_t keys = 0;       ///< n, below 2^31
  std::int64_t row_begin = 0;  ///< rows of this call, within 0..s
  std::int64_t row_end = 0;
  const void* q = nullptr;                ///< bf16 [s, H, d]
  std::int64_t q_row_stride = 0;          ///< 0: H * d
  std::int64_t q_head_stride = 0;         ///< 0: d
  const void* kv = nullptr;               ///< bf16 [n, d]
  std::int64_t kv_row_stride = 0;         ///< 0: d
  const std::int32_t* indices = nullptr;  ///< [s, K], distinct inside length; entries that are no row are ignored
  const std::int32_t* length = nullptr;   ///< [s]; outside 0..K it counts as 0
  const float* sink = nullptr;            ///< [H]; only read for dsink
  const void* dout = nullptr;             ///< bf16 [s, H, 512]
  std::int64_t dout_row_stride = 0;       ///< 0: H * 512
  std::int64_t dout_head_stride = 0;      ///< 0: 512
  const void* out = nullptr;              ///< bf16 [s, H, 512], of the forward
  std::int64_t out_row_stride = 0;        ///< 0: H * 512
  std::int64_t out_head_stride = 0;       ///< 0: 512
  const float* lse = nullptr;             ///< [s, H], of the forward: natural logarithm, sink included
  void* dq = nullptr;                     ///< bf16 [s, H, d]; rows of length 0 are 0
  std::int64_t dq_row_stride = 0;         ///< 0: H * d
  std::int64_t dq_head_stride = 0;        ///< 0: d
  float* dkv = nullptr;                   ///< [n, d], added to
  std::int64_t dkv_row_stride = 0;        ///< 0: d
  float* dsink = nullptr;                 ///< [H], added to; or null
  float* head_sums = nullptr;             ///< [row_end - row_begin, K], written: sums of P over heads; or null
  void* workspace = nullptr;        ///< aligned to 128 bytes; contents do not matter before, and are garbage after
  std::size_t workspace_bytes = 0;  ///< at least that of one row; more lets more rows go at a time
  /// Else atomics add to dkv and dsink, whose bits then differ from run to run. Bits also depend on the workspace's
  /// size, which is 4 K d bytes a row larger. Inside length lists must ascend and hold rows only.
  bool deterministic = false;
  std::uint32_t passes = 7;          ///< for measurement: bits 1, 2 and 4 are statistics, queries and keys
  std::int32_t tiles_per_visit = 0;  ///< see sparse_backward_keys.cuh; 0: chosen by the size of dkv
};

/// Workspace for `rows` rows at a time: 4 K H bytes a row, H padded to 64 or 128, and a little; deterministic: 4 K d
/// more.
std::size_t sparse_backward_workspace_bytes(const SparseBackwardArgs& args, std::int64_t rows);
/// As many rows at a time as fill the GPU's multiprocessors eight times over (deterministic: four times), or fewer if
/// there are no more.
std::size_t sparse_backward_workspace_bytes(const SparseBackwardArgs& args);

/// Enqueues on `stream`, allocates nothing and may be captured. dq and head_sums have the same bits in every run.
cudaError_t launch_sparse_backward(const SparseBackwardArgs& args, cudaStream_t stream);

/// Makes the driver load the kernels now; loading waits for the device, which may be stuck behind a pending wait later.
cudaError_t load_sparse_backward_kernels();

}  // namespace tandem::detail::sm90

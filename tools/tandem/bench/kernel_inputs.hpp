// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/query_rows.hpp"
#include "tandem/bench/row_fill.hpp"

/// What kernels are timed with, made on all cores. A number depends on the seed and its place alone.
namespace tandem::cli {

struct IndexTensors {
  Tensor q, w, k;
  Tensor k_scale;  ///< of e4m3, else empty
};
IndexTensors make_index_tensors(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows, Pattern pattern);

/// f32 [rows, keys].
Tensor make_scores(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows, Pattern pattern);

struct AttentionTensors {
  Tensor q, kv, indices, length;
  std::int64_t touched_keys = 0;  ///< keys that are in any list
};
AttentionTensors make_attention_tensors(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows,
                                        Pattern pattern);

/// T [rows, H, 512]: the gradient that a backward starts from.
Tensor make_dout(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows);

}  // namespace tandem::cli

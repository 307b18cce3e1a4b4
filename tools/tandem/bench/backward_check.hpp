// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/kernel_inputs.hpp"
#include "tandem/bench/query_rows.hpp"
#include "tandem/bench/row_check.hpp"

namespace tandem::cli {

/// What a backward of the attention starts from beside the tensors of the forward.
struct ForwardResults {
  Tensor out, lse, dout;
};

/// Landed keys whose gradients are looked at.
std::vector<std::int64_t> keys_to_check(const QueryRows& rows);

/// Some rows of dq, and of what all rows together add to some keys' dkv, beside their evaluation in double from the
/// same out and lse. dkv was 0 before; lists are distinct and ascending.
RowVerdict check_backward(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows,
                          const AttentionTensors& in, const ForwardResults& forward, const Tensor& dq,
                          const Tensor& dkv);

}  // namespace tandem::cli

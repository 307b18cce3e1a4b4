// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/forward_kernels.hpp"
#include "tandem/bench/row_check.hpp"
#include "tandem/bench/row_fill.hpp"

namespace tandem::cli {

/// Some rows of the sparse indexer loss and of d_index_q and d_index_w beside their evaluation in double over the same
/// lists. `query_rows`: of the whole batch.
RowVerdict check_loss(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows, const DsaInputs& inputs,
                      const LandedKeys& landed, const TopkLists& lists, std::int64_t query_rows, const Tensor& loss,
                      const Tensor& d_index_q, const Tensor& d_index_w);

}  // namespace tandem::cli

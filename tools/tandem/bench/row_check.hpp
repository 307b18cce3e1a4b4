// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/kernel_inputs.hpp"
#include "tandem/bench/query_rows.hpp"
#include "tandem/bench/row_fill.hpp"
#include "tandem/kernels.hpp"

/// Some rows of results beside their evaluation in double on the same inputs, which shares no code with the kernels.
namespace tandem::cli {

struct RowVerdict {
  std::int64_t rows = 0;  ///< that were looked at
  std::int64_t wrong = 0;
  std::int64_t near_ties = 0;    ///< of scores, so near that rounding decides which is selected: not wrong
  std::int64_t listed = 0;       ///< keys in the lists of these rows
  std::int64_t listed_near = 0;  ///< of them, those among the last text_window before the query

  RowVerdict& operator+=(const RowVerdict& other);
};

/// The first, the last, and some between.
std::vector<std::int64_t> rows_to_check(const QueryRows& rows);

/// Of lists by landed row.
RowVerdict check_selection(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows,
                           const IndexTensors& in, bool exact, const TopkLists& found);
RowVerdict check_selection(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows, const Tensor& scores,
                           const TopkLists& found);
RowVerdict check_attention(const RowFiller& filler, const ComputeJob& job, const QueryRows& rows,
                           const AttentionTensors& in, const AttentionOutputs& found);

}  // namespace tandem::cli

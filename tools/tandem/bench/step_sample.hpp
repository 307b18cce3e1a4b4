// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/bench/query_rows.hpp"
#include "tandem/bench/row_fill.hpp"

namespace tandem::cli {

/// What a step leaves, by local row.
struct StepResults {
  std::vector<Tensor> exact;  ///< of one row's work: the same bits in every run
  std::vector<Tensor> sums;   ///< f32, that rows of many queries are added to, in no fixed order on GPUs
};

/// Some rows of them, on the host.
struct StepSample {
  std::vector<std::vector<std::byte>> exact;
  std::vector<std::vector<float>> sums;
};

/// Of `rows`, with what is exact only of those that see keys: nobody writes that of others.
StepSample take_sample(const RowFiller& filler, const StepResults& results, const QueryRows& rows);
/// How many rows differ: in a bit of what is exact, or in the sums, by a bit or, unless `deterministic`, by more than
/// another order of adding explains.
std::int64_t differing_rows(const StepSample& found, const StepSample& wanted, bool deterministic);

}  // namespace tandem::cli

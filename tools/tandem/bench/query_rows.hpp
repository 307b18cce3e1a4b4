// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/row_fill.hpp"
#include "tandem/kernels.hpp"
#include "tandem/plan.hpp"

namespace tandem::cli {

/// Rows of queries and what they see, as kernels are called with them.
struct QueryRows {
  std::int64_t rows = 0;
  std::int64_t keys = 0;                         ///< landed rows
  std::vector<std::int64_t> key_begin, key_end;  ///< landed rows that each sees
  std::vector<std::int64_t> position;            ///< landed rows before it, itself included
  std::vector<IndexerStep> steps;                ///< calls of the indexer
  // The same for kernels of a GPU.
  Tensor bounds;
  std::vector<Tensor> step_rows, step_keys;  ///< of each step

  std::int64_t visible(std::int64_t row) const {
    return key_end[static_cast<std::size_t>(row)] - key_begin[static_cast<std::size_t>(row)];
  }
  /// Rows that see keys, ascending.
  std::vector<std::int64_t> queries() const;
  std::int64_t query_count() const { return std::ssize(queries()); }
  /// Query-key pairs that a selection of `topk` has to look at: of rows that see no more than `topk` it looks at none.
  std::int64_t scored_pairs(std::int64_t topk) const;
  /// Keys that rows have in their lists.
  std::int64_t selected(std::int64_t topk) const;
  /// Most rows of a step that does not end.
  std::int64_t carried_rows() const;
};

/// `count` rows that all see all of `keys` landed rows, and are the last of them.
QueryRows all_seeing_rows(const RowFiller& filler, std::int64_t count, std::int64_t keys);
/// This rank's rows of a plan, in its steps.
QueryRows rows_of_plan(const RowFiller& filler, const Plan& plan);
/// The same in one step, as if all keys were there from the beginning.
QueryRows rows_in_one_step(const RowFiller& filler, const Plan& plan);
/// Of a benchmark of kernels.
QueryRows make_query_rows(const RowFiller& filler, const QueryChoice& choice, std::int64_t keys);

}  // namespace tandem::cli

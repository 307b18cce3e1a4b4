// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/deadline.hpp"
#include "tandem/plan.hpp"
#include "tandem/tensor.hpp"

namespace tandem::detail {

/// What of a plan the kernels of a GPU read, in its memory. Made once for each plan: calls enqueue kernels alone.
struct PlanTables {
  struct Step {
    Tensor rows;  ///< i32 [rows], local rows
    Tensor keys;  ///< i32 [ranges, 2], landed rows
  };
  Tensor bounds;  ///< i32 [s, 2], landed rows that each row sees
  /// i32 [s]: a landed row that row t sees plus shift[t] is its global position. Those rows are one stretch of t's
  /// document, so that one number serves all.
  Tensor shift;
  std::vector<Step> steps;  ///< of Plan::indexer_steps()
};

/// Blocks until the tables are there.
PlanTables make_plan_tables(const Plan& plan, const Device& device, Deadline deadline);
std::uint64_t plan_table_bytes(const Plan& plan);

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "layout/plan_data.hpp"

namespace tandem::detail {

void fill_query_blocks(PlanData& plan) {
  const auto sees_keys = [&](std::int64_t row) {
    return plan.key_begin[static_cast<std::size_t>(row)] < plan.key_end[static_cast<std::size_t>(row)];
  };
  for (std::int64_t end = plan.rows(); end > 0;) {
    if (!sees_keys(end - 1)) {
      --end;
      continue;
    }
    std::int64_t begin = end - std::min(end, plan.options.block_rows);
    const std::int64_t next = begin;
    while (!sees_keys(begin)) ++begin;
    plan.blocks.push_back({begin, end});
    end = next;
  }
  // key_end never descends and visible ranges of different documents do not meet, so the first row that sees any row of
  // a chunk is the first that sees its lowest.
  std::vector<std::size_t> final_block;
  plan.final_offset.assign(plan.blocks.size() + 1, 0);
  for (const ChunkTransfer& t : plan.arrivals) {
    const auto first = std::upper_bound(plan.key_end.begin(), plan.key_end.end(), t.runs.front().landed_row);
    const std::int64_t row = first - plan.key_end.begin();
    const auto block = std::partition_point(plan.blocks.begin(), plan.blocks.end(),
                                            [row](const RowRange& rows) { return rows.begin > row; });
    final_block.push_back(static_cast<std::size_t>(block - plan.blocks.begin()));
    ++plan.final_offset[final_block.back() + 1];
  }
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) plan.final_offset[b + 1] += plan.final_offset[b];
  std::vector<std::size_t> next(plan.final_offset.begin(), plan.final_offset.end());
  plan.final_chunks.resize(plan.arrivals.size());
  for (std::size_t i = 0; i < plan.arrivals.size(); ++i) {
    plan.final_chunks[next[final_block[i]]++] = plan.arrivals[i].chunk;
  }
}

}  // namespace tandem::detail

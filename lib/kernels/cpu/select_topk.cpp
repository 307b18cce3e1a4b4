// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include "kernels/cpu/context.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/topk_lists.hpp"
#include "kernels/cpu/topk_select.hpp"

namespace tandem::detail::cpu {

void select_topk(const Context& context, const ScoreMatrix& in, const TopkLists& out) {
  std::atomic<std::int64_t> nans{0};
  context.pool.run(in.scores.size(0), [&](TaskSource& tasks) {
    std::vector<std::uint64_t> candidates(static_cast<std::size_t>(TopkSelector::capacity(in.topk)));
    std::int64_t found = 0;
    for (std::int64_t row = 0; tasks.next(row);) {
      const RowRange seen{in.key_begin[static_cast<std::size_t>(row)], in.key_end[static_cast<std::size_t>(row)]};
      if (seen.size() <= in.topk) {
        write_range(row, seen, out);
        continue;
      }
      TopkSelector selector(candidates.data(), in.topk);
      const float* scores = entry<float>(in.scores, row) + seen.begin;
      found += selector.offer({scores, static_cast<std::size_t>(seen.size())}, seen.begin);
      write_list(row, selector.finish(), out);
    }
    nans += found;
  });
  if (nans != 0) std::atomic_ref(*out.nan_count.data_as<std::int64_t>()) += nans.load();
}

}  // namespace tandem::detail::cpu

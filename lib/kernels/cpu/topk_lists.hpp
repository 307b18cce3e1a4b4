// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/topk_select.hpp"
#include "tandem/kernels.hpp"

/// A row's finished list, -1 beyond its length.
namespace tandem::detail::cpu {

/// Of a row that takes all it sees.
inline void write_range(std::int64_t row, RowRange seen, const TopkLists& out) {
  std::int32_t* list = entry<std::int32_t>(out.indices, row);
  for (std::int64_t i = 0; i < out.indices.size(1); ++i) {
    list[i] = i < seen.size() ? static_cast<std::int32_t>(seen.begin + i) : -1;
  }
  *entry<std::int32_t>(out.length, row) = static_cast<std::int32_t>(seen.size());
}

/// `best` by landed row ascending.
inline void write_list(std::int64_t row, std::span<const std::uint64_t> best, const TopkLists& out) {
  std::int32_t* list = entry<std::int32_t>(out.indices, row);
  for (std::size_t i = 0; i < best.size(); ++i) list[i] = rank_key_row(best[i]);
  std::fill(list + best.size(), list + out.indices.size(1), -1);
  *entry<std::int32_t>(out.length, row) = static_cast<std::int32_t>(best.size());
}

}  // namespace tandem::detail::cpu

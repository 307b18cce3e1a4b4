// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/cpu/rows.hpp"

namespace tandem::detail::cpu {
namespace {

[[noreturn]] void reject(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

void sort_and_deduplicate(RowKeys& row) {
  std::vector<std::uint64_t> pairs(row.keys.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = (static_cast<std::uint64_t>(row.keys[i]) << 32) | static_cast<std::uint32_t>(row.entries[i]);
  }
  std::sort(pairs.begin(), pairs.end());
  std::size_t kept = 0;
  for (const std::uint64_t pair : pairs) {
    const auto key = static_cast<std::int32_t>(pair >> 32);
    if (kept > 0 && row.keys[kept - 1] == key) continue;
    row.keys[kept] = key;
    row.entries[kept++] = static_cast<std::int32_t>(pair & 0xFFFFFFFFU);
  }
  row.keys.resize(kept);
  row.entries.resize(kept);
}

}  // namespace

void RowKeys::read(const Tensor& indices, const Tensor& length, std::int64_t row, std::int64_t landed_rows) {
  keys.clear();
  entries.clear();
  const std::int32_t count = *entry<std::int32_t>(length, row);
  if (count < 0 || count > indices.size(1)) {
    reject(fmt::format("length[{}] is {}, expected 0 to {}", row, count, indices.size(1)));
  }
  const std::int32_t* list = entry<std::int32_t>(indices, row);
  bool ascending = true;
  for (std::int32_t i = 0; i < count; ++i) {
    if (list[i] < 0) continue;
    if (list[i] >= landed_rows) {
      reject(fmt::format("indices[{}, {}] is {}, expected a landed row below {}", row, i, list[i], landed_rows));
    }
    ascending = ascending && (keys.empty() || keys.back() < list[i]);
    keys.push_back(list[i]);
    entries.push_back(i);
  }
  if (!ascending) sort_and_deduplicate(*this);
}

void RowKeys::assign_range(std::int64_t begin, std::int64_t end) {
  keys.resize(static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 0)));
  entries.resize(keys.size());
  std::iota(keys.begin(), keys.end(), static_cast<std::int32_t>(begin));
  std::iota(entries.begin(), entries.end(), 0);
}

}  // namespace tandem::detail::cpu

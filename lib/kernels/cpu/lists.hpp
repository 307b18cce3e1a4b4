// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/tensor.hpp"

namespace tandem::detail::cpu {

/// The keys of one row in the order in which every kernel visits them: ascending, each once. A caller's order or
/// repetitions therefore change no bit of a result.
struct RowKeys {
  std::vector<std::int32_t> keys;
  /// Where in the row's list each key comes first.
  std::vector<std::int32_t> entries;
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(keys.size()); }

  /// Row `row` of lists [s, K] with lengths [s]: entries beyond the length are not read, negative ones are skipped.
  /// Throws invalid_argument if the length is not one of 0..K or an entry is not below `landed_rows`.
  void read(const Tensor& indices, const Tensor& length, std::int64_t row, std::int64_t landed_rows);
  /// Keys [begin, end), entry i being begin + i.
  void assign_range(std::int64_t begin, std::int64_t end);
};

}  // namespace tandem::detail::cpu

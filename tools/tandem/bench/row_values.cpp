// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/row_values.hpp"

#include <algorithm>

#include "support/reference/reference.hpp"

namespace tandem::cli {

std::vector<float> decode(const Tensor& t) {
  const auto count = static_cast<std::size_t>(t.elements());
  switch (t.dtype()) {
    case DType::bf16:
      return reference::decode_bf16({t.data_as<const std::uint16_t>(), count});
    case DType::f8e4m3:
      return reference::decode_e4m3({t.data_as<const std::uint8_t>(), count});
    default:
      return {t.data_as<const float>(), t.data_as<const float>() + count};
  }
}

std::vector<float> decode_rows(const RowFiller& filler, const Tensor& t, const std::vector<std::int64_t>& rows) {
  std::vector<float> all;
  for (const std::int64_t row : rows) {
    const std::vector<float> values = decode(filler.fetch(t, row, 1));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<std::int64_t> spread_rows(std::int64_t rows, std::int64_t most) {
  const std::int64_t count = std::min(most, rows);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? 0 : (rows - 1) * i / (count - 1));
  return chosen;
}

}  // namespace tandem::cli

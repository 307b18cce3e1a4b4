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
  constexpr std::int64_t few = 8;  // for whom threads are not worth it
  const Tensor here = filler.fetch(t, rows);
  const std::int64_t count = std::ssize(rows);
  if (count <= few || here.dims() == 1) return decode(here);
  const std::int64_t width = here.row_elements();
  std::vector<float> all(static_cast<std::size_t>(count * width));
  in_threads(count, [&](std::int64_t row) {
    const std::vector<float> values = decode(here.rows(row, 1));
    std::copy(values.begin(), values.end(), all.begin() + row * width);
  });
  return all;
}

std::vector<std::int64_t> spread_rows(std::int64_t rows, std::int64_t most) {
  const std::int64_t count = std::min(most, rows);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? 0 : (rows - 1) * i / (count - 1));
  return chosen;
}

std::vector<std::int64_t> spread_rows(const std::vector<std::int64_t>& rows, std::int64_t most) {
  std::vector<std::int64_t> chosen = spread_rows(std::ssize(rows), most);
  for (std::int64_t& row : chosen) row = rows[static_cast<std::size_t>(row)];
  return chosen;
}

}  // namespace tandem::cli

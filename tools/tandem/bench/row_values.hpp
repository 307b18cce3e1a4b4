// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/bench/row_fill.hpp"

namespace tandem::cli {

/// Of a dense tensor of the host: bf16, f8e4m3 or f32.
std::vector<float> decode(const Tensor& t);
/// `rows` of a tensor of the device, one after another.
std::vector<float> decode_rows(const RowFiller& filler, const Tensor& t, const std::vector<std::int64_t>& rows);
/// At most `most` of [0, rows): the first, the last, and some between.
std::vector<std::int64_t> spread_rows(std::int64_t rows, std::int64_t most);
/// The same of `rows`.
std::vector<std::int64_t> spread_rows(const std::vector<std::int64_t>& rows, std::int64_t most);

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/bf16.hpp"
#include "device/e4m3.hpp"
#include "tandem/tensor.hpp"

namespace tandem::cli {

/// Writes `count` values as f32, bf16 or f8e4m3.
inline void encode(const float* values, std::size_t count, DType dtype, void* to) {
  if (dtype == DType::f32) {
    std::memcpy(to, values, count * sizeof(float));
  } else if (dtype == DType::f8e4m3) {
    std::transform(values, values + count, static_cast<std::uint8_t*>(to), detail::e4m3_from_float);
  } else {
    std::transform(values, values + count, static_cast<std::uint16_t*>(to), detail::bf16_from_float);
  }
}

/// Divides a vector by its scale, which this returns: its largest number becomes that of e4m3.
inline float scale_down(float* vector, std::int64_t count) {
  float most = 0.0F;
  for (std::int64_t c = 0; c < count; ++c) most = std::max(most, std::fabs(vector[c]));
  if (most == 0.0F) return 1.0F;
  const float scale = most / detail::e4m3_max;
  for (std::int64_t c = 0; c < count; ++c) vector[c] /= scale;
  return scale;
}

}  // namespace tandem::cli

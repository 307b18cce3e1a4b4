// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace tandem::detail {

/// A bfloat16 is the upper half of a binary32; memory holds its bits as std::uint16_t.
constexpr float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Rounds to nearest, ties to even; too large becomes infinity; a NaN becomes a quiet NaN of the same sign. Written
/// without a branch on data so that loops over it vectorise.
constexpr std::uint16_t bf16_from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
}

/// `value` as bf16 can hold it.
constexpr float bf16_round(float value) noexcept { return bf16_to_float(bf16_from_float(value)); }

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tandem::detail {

/// An fp8 e4m3 has a sign, 4 bits of exponent with bias 7 and 3 of fraction; no infinities: only 0x7F and 0xFF, all
/// bits but the sign, are NaN. Memory holds its bits as std::uint8_t.
constexpr float e4m3_max = 448.0F;

/// Spelt out; e4m3_to_float looks it up.
constexpr float e4m3_value(std::uint8_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x80U) << 24;
  const std::uint32_t magnitude = bits & 0x7FU;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000U);
  // Below 8 there is no implicit one: a multiple of 2^-9, which a binary32 holds as a normal number.
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9F
                                    : std::bit_cast<float>((magnitude << 20) + ((127U - 7U) << 23));
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

inline constexpr std::array<float, 256> e4m3_values = [] {
  std::array<float, 256> values{};
  for (std::size_t bits = 0; bits < values.size(); ++bits) values[bits] = e4m3_value(static_cast<std::uint8_t>(bits));
  return values;
}();

constexpr float e4m3_to_float(std::uint8_t bits) noexcept { return e4m3_values[bits]; }

/// Rounds to nearest, ties to even; what is larger than 448, infinities too, becomes 448 of its sign; a NaN stays one.
constexpr std::uint8_t e4m3_from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | 0x7FU);
  if (magnitude >= std::bit_cast<std::uint32_t>(e4m3_max)) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6F)) {
    // Subnormal, or the least normal one: adding 1.5 * 2^14, whose last bit is 2^-9, rounds to multiples of that.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1.8p14F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x3FU));
  }
  const std::uint32_t rounded = (magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20;
  return static_cast<std::uint8_t>(sign | (rounded - ((127U - 7U) << 3)));
}

}  // namespace tandem::detail

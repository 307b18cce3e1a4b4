// SPDX-License-Identifier: Apache-2.0
#include "device/bf16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/random.hpp"

namespace tandem::detail {
namespace {

// The value of a bfloat16, from its definition: sign, 8 bits of exponent, 7 of fraction.
double definition(std::uint16_t bits) {
  const int exponent = (bits >> 7) & 0xFF;
  const int fraction = bits & 0x7F;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0xFF) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -126 - 7) : std::ldexp(128 + fraction, exponent - 127 - 7));
}

// Nearest bfloat16 by searching: the two neighbours of |v| among all values, the closer one, or the even one of a tie.
// The step past the largest finite value stands for infinity, as the rounding of IEEE 754 has it.
std::uint16_t nearest(float v) {
  const auto magnitude = [](int bits) {
    return bits == 0x7F80 ? std::ldexp(1.0, 128) : definition(static_cast<std::uint16_t>(bits));
  };
  const double a = std::fabs(static_cast<double>(v));
  int low = 0, high = 0x7F80;
  if (a >= magnitude(high)) {
    low = high;
  }
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (magnitude(middle) <= a ? low : high) = middle;
  }
  const double below = a - magnitude(low);
  const double above = magnitude(high) - a;
  const int chosen = below < above ? low : above < below ? high : low % 2 == 0 ? low : high;
  return static_cast<std::uint16_t>(chosen | (std::signbit(v) ? 0x8000 : 0));
}

TEST(Bf16, EveryValueWidensAsDefined) {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float v = bf16_to_float(bits);
    const double expected = definition(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(v)) << i;
    } else {
      ASSERT_EQ(static_cast<double>(v), expected) << i;
      ASSERT_EQ(std::signbit(v), i >= 0x8000) << i;
    }
  }
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const std::uint16_t back = bf16_from_float(bf16_to_float(bits));
    if (std::isnan(definition(bits))) {
      ASSERT_EQ(back, bits | 0x40) << i;  // made quiet, sign and payload kept
    } else {
      ASSERT_EQ(back, bits) << i;
    }
  }
}

TEST(Bf16, BordersBetweenNeighboursRoundToNearestEven) {
  for (std::uint32_t high = 0; high < 0x7F80; ++high) {
    for (const std::uint32_t low : {0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const float v = std::bit_cast<float>((high << 16) | low);
      ASSERT_EQ(bf16_from_float(v), nearest(v)) << std::hex << high << ' ' << low;
      ASSERT_EQ(bf16_from_float(-v), nearest(-v)) << std::hex << high << ' ' << low;
    }
  }
}

TEST(Bf16, RandomBitsRoundToNearest) {
  auto rng = testing::test_rng(1);
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(rng());
    const float v = std::bit_cast<float>(bits);
    if (std::isnan(v)) continue;
    ASSERT_EQ(bf16_from_float(v), nearest(v)) << std::hex << bits;
  }
}

TEST(Bf16, EveryKindOfNanStaysNan) {
  auto rng = testing::test_rng(2);
  for (int i = 0; i < 10000; ++i) {
    const std::uint32_t payload = i < 23 ? 1U << i : static_cast<std::uint32_t>(rng()) & 0x7FFFFFU;
    if (payload == 0) continue;
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      // Bits, not floats: passing a signalling NaN around as a float may quiet it.
      const std::uint16_t out = bf16_from_float(std::bit_cast<float>(sign | 0x7F800000U | payload));
      ASSERT_TRUE(std::isnan(definition(out))) << std::hex << payload;
      ASSERT_NE(out & 0x40, 0) << std::hex << payload;
      ASSERT_EQ(out & 0x8000, sign >> 16);
    }
  }
}

TEST(Bf16, EdgesOfTheRange) {
  static_assert(bf16_from_float(1.0F) == 0x3F80);
  static_assert(bf16_round(1.00390625F) == 1.0F);  // a tie, to even
  const float max = std::numeric_limits<float>::max();
  EXPECT_EQ(bf16_from_float(max), 0x7F80);
  EXPECT_EQ(bf16_from_float(-max), 0xFF80);
  EXPECT_EQ(bf16_from_float(INFINITY), 0x7F80);
  EXPECT_EQ(bf16_from_float(-0.0F), 0x8000);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(bf16_from_float(std::ldexp(1.0F, -133)), 1);  // the smallest one
}

}  // namespace
}  // namespace tandem::detail

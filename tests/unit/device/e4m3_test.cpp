// SPDX-License-Identifier: Apache-2.0
#include "device/e4m3.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/random.hpp"

namespace tandem::detail {
namespace {

// The value of an e4m3, from its definition in the OCP 8-bit floating point specification.
double definition(int bits) {
  const int exponent = (bits >> 3) & 0xF;
  const int fraction = bits & 0x7;
  const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  if (exponent == 0xF && fraction == 0x7) return NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -6 - 3) : std::ldexp(8 + fraction, exponent - 7 - 3));
}

// The nearest of all values that are no NaN, by trying each; of two the one with an even code.
int nearest(float v) {
  const double a = std::fabs(static_cast<double>(v));
  int best = 0;
  for (int bits = 1; bits < 0x7F; ++bits) {
    const double distance = std::fabs(definition(bits) - a);
    const double least = std::fabs(definition(best) - a);
    if (distance < least || (distance == least && bits % 2 == 0)) best = bits;
  }
  return best | (std::signbit(v) ? 0x80 : 0);
}

TEST(E4m3, EveryCodeHasTheValueOfItsDefinition) {
  for (int bits = 0; bits < 256; ++bits) {
    const float v = e4m3_to_float(static_cast<std::uint8_t>(bits));
    const double expected = definition(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(v)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(v), expected) << bits;
    }
    ASSERT_EQ(std::signbit(v), bits >= 128) << bits;
  }
}

TEST(E4m3, WellKnownValues) {
  static_assert(e4m3_to_float(0x38) == 1.0F);
  static_assert(e4m3_to_float(0x7E) == e4m3_max);
  static_assert(e4m3_to_float(0x01) == 0x1p-9F);
  static_assert(e4m3_to_float(0x07) == 7 * 0x1p-9F);
  static_assert(e4m3_to_float(0x08) == 0x1p-6F);
  static_assert(e4m3_to_float(0xC0) == -2.0F);
}

TEST(E4m3, EveryCodeSurvivesTheRoundTrip) {
  for (int bits = 0; bits < 256; ++bits) {
    ASSERT_EQ(e4m3_from_float(e4m3_to_float(static_cast<std::uint8_t>(bits))), bits);
  }
}

TEST(E4m3, BordersBetweenNeighboursRoundToNearestEven) {
  for (int bits = 0; bits < 0x7E; ++bits) {
    const auto middle = static_cast<float>((definition(bits) + definition(bits + 1)) / 2);
    for (const float v : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1000.0F)}) {
      ASSERT_EQ(e4m3_from_float(v), nearest(v)) << bits;
      ASSERT_EQ(e4m3_from_float(-v), nearest(-v)) << bits;
    }
  }
}

TEST(E4m3, RandomNumbersRoundToNearest) {
  auto rng = testing::test_rng(1);
  std::uniform_real_distribution<float> exponent(-14, 10);
  for (int i = 0; i < 20000; ++i) {
    const float v = (rng() % 2 == 0 ? 1.0F : -1.0F) * std::exp2(exponent(rng));
    ASSERT_EQ(e4m3_from_float(v), nearest(v)) << v;
  }
}

TEST(E4m3, WhatDoesNotFitIsTheLargestAndNanStaysNan) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float v : {448.0F, 449.0F, 464.0F, 480.0F, 1e30F, inf}) {
    EXPECT_EQ(e4m3_from_float(v), 0x7E) << v;
    EXPECT_EQ(e4m3_from_float(-v), 0xFE) << v;
  }
  EXPECT_EQ(e4m3_from_float(std::bit_cast<float>(0x7F800001U)), 0x7F);
  EXPECT_EQ(e4m3_from_float(std::bit_cast<float>(0xFFC00000U)), 0xFF);
  EXPECT_EQ(e4m3_from_float(-0.0F), 0x80);
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::denorm_min()), 0);
}

}  // namespace
}  // namespace tandem::detail

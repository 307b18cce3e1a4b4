// SPDX-License-Identifier: Apache-2.0
#include "tandem/comparison.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::cli {
namespace {

TEST(RelativeError, IsTheRatioOfNorms) {
  RelativeError e;
  e.add(3.0, 3.0);
  e.add(4.1, 4.0);
  EXPECT_NEAR(e.value(), 0.1 / 5, 1e-12);
}

TEST(RelativeError, IsAbsoluteWhereTheReferenceVanishes) {
  RelativeError e;
  e.add(3e-9, 0.0);
  e.add(4e-9, 1e-17);
  EXPECT_NEAR(e.value(), 5e-9, 1e-15);
}

TEST(RelativeError, EqualInfinitiesAgreeOthersDoNot) {
  RelativeError equal;
  equal.add(-INFINITY, -INFINITY);
  equal.add(1.0, 1.0);
  EXPECT_EQ(equal.value(), 0.0);
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    RelativeError e;
    e.add(bad, 1.0);
    EXPECT_EQ(e.value(), INFINITY);
    RelativeError other;
    other.add(1.0, bad);
    EXPECT_EQ(other.value(), INFINITY);
  }
}

}  // namespace
}  // namespace tandem::cli

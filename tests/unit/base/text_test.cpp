// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "base/hash.hpp"
#include "base/thread.hpp"

namespace tandem::detail {
namespace {

using std::chrono::nanoseconds;

std::string duration(double seconds) { return format_duration(nanoseconds(static_cast<std::int64_t>(seconds * 1e9))); }

TEST(Text, Durations) {
  EXPECT_EQ(duration(0), "0 ns");
  EXPECT_EQ(format_duration(nanoseconds(999)), "999 ns");
  EXPECT_EQ(duration(1e-6), "1 us");
  EXPECT_EQ(duration(3.44e-3), "3.4 ms");
  EXPECT_EQ(duration(9.96e-3), "10 ms");
  EXPECT_EQ(duration(0.9994), "999 ms");
  EXPECT_EQ(duration(0.9996), "1 s");
  EXPECT_EQ(duration(12), "12 s");
  EXPECT_EQ(duration(59.4), "59 s");
  EXPECT_EQ(duration(59.6), "1 min 0 s");
  EXPECT_EQ(duration(200), "3 min 20 s");
  EXPECT_EQ(duration(3600 * 5 + 61), "5 h 1 min");
  EXPECT_EQ(duration(-12), "-12 s");
  EXPECT_EQ(format_duration(nanoseconds::min()).front(), '-');
}

TEST(Text, ByteCounts) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1468006), "1.4 MiB");
  EXPECT_EQ(format_bytes(1ULL << 30), "1.0 GiB");
  EXPECT_EQ(format_bytes((1ULL << 30) - 1), "1.0 GiB");
  EXPECT_EQ(format_bytes(100ULL << 40), "100 TiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16384 PiB");
}

TEST(Text, NamesOfRanks) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({5, 3}), "ranks 5, 3");
}

TEST(Thread, LongNamesAreCut) {
  char before[16] = {};
  pthread_getname_np(pthread_self(), before, sizeof(before));
  set_thread_name("a name of more than 15 characters");
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  EXPECT_STREQ(name, "a name of more ");
  set_thread_name(before);
}

// Written down once: a change would make ranks of two builds disagree about equal layouts.
TEST(Hash, ValuesAreFixed) {
  static_assert(Hash().combine(std::uint64_t{1}).value() == Hash().combine(1).value());
  EXPECT_EQ(Hash().value(), 0x9CA066F1A4AB2EEAULL);
  EXPECT_EQ(Hash().combine(-1).combine("tandem").combine(0.5).value(), 0xD30949E5C0B1C61AULL);
}

TEST(Hash, WidthOfAnIntegerDoesNotCount) {
  EXPECT_EQ(Hash().combine(std::int32_t{-7}).value(), Hash().combine(std::int64_t{-7}).value());
  EXPECT_EQ(Hash().combine(std::uint16_t{7}).value(), Hash().combine(std::uint64_t{7}).value());
}

TEST(Hash, OrderAndBordersCount) {
  const auto hash = [](auto... v) {
    Hash h;
    (h.combine(v), ...);
    return h.value();
  };
  EXPECT_NE(hash(1, 2), hash(2, 1));
  EXPECT_NE(hash(0), hash());
  EXPECT_NE(hash(0, 0), hash(0));
  EXPECT_NE(hash("ab", "c"), hash("a", "bc"));
  EXPECT_NE(hash("12345678", ""), hash("1234567", "8"));
  EXPECT_NE(hash(std::string_view("a\0", 2)), hash("a"));
  EXPECT_NE(Hash(1).value(), Hash(2).value());
  const std::vector<std::vector<int>> split[] = {{{1}, {2, 3}}, {{1, 2}, {3}}};
  EXPECT_NE(Hash().combine_range(split[0][0]).combine_range(split[0][1]).value(),
            Hash().combine_range(split[1][0]).combine_range(split[1][1]).value());
}

TEST(Hash, SmallInputsDoNotCollideAndAllBitsMove) {
  std::set<std::uint64_t> seen;
  std::uint64_t low = 0;
  std::uint64_t high = ~0ULL;
  for (int a = -50; a < 50; ++a) {
    for (int b = -50; b < 50; ++b) {
      const std::uint64_t v = Hash().combine(a).combine(b).value();
      seen.insert(v);
      low |= v;
      high &= v;
    }
  }
  EXPECT_EQ(seen.size(), 10000U);
  EXPECT_EQ(low, ~0ULL);
  EXPECT_EQ(high, 0U);
}

}  // namespace
}  // namespace tandem::detail

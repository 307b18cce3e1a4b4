// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/random.hpp"

namespace tandem::detail {
namespace {

using namespace std::string_literals;

TEST(Bytes, EncodesLittleEndian) {
  ByteWriter out;
  out.u8(0x01);
  out.u16(0x0203);
  out.u32(0x04050607);
  out.u64(0x08090A0B0C0D0E0F);
  out.i64(-2);
  out.f64(-2.0);
  out.string("hi");
  EXPECT_EQ(out.bytes(),
            "\x01"
            "\x03\x02"
            "\x07\x06\x05\x04"
            "\x0F\x0E\x0D\x0C\x0B\x0A\x09\x08"
            "\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
            "\x00\x00\x00\x00\x00\x00\x00\xC0"
            "\x02\x00\x00\x00hi"s);
}

TEST(Bytes, ReadsBackWhatWasWritten) {
  ByteWriter out;
  out.u8(255);
  out.u16(65535);
  out.u32(0xFFFFFFFFU);
  out.u64(std::numeric_limits<std::uint64_t>::max());
  out.i32(std::numeric_limits<std::int32_t>::min());
  out.i64(std::numeric_limits<std::int64_t>::min());
  out.f64(std::numeric_limits<double>::quiet_NaN());
  out.f64(-0.0);
  out.string("");
  out.string("a\0b"s);
  out.raw("xyz", 3);
  out.raw(nullptr, 0);

  ByteReader in(out.bytes());
  EXPECT_EQ(in.u8(), 255);
  EXPECT_EQ(in.u16(), 65535);
  EXPECT_EQ(in.u32(), 0xFFFFFFFFU);
  EXPECT_EQ(in.u64(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(in.i32(), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(in.i64(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(std::isnan(in.f64()));
  EXPECT_TRUE(std::signbit(in.f64()));
  EXPECT_EQ(in.string(), "");
  EXPECT_EQ(in.view(), "a\0b"s);
  char raw[3];
  in.raw(raw, 3);
  EXPECT_EQ(std::string(raw, 3), "xyz");
  EXPECT_TRUE(in.at_end());
  EXPECT_NO_THROW(in.expect_end());
}

// Everything in one record, read in one go.
void read_record(std::string_view bytes) {
  ByteReader in(bytes);
  in.u8();
  in.u16();
  in.u32();
  in.u64();
  in.f64();
  in.string();
  in.raw(5);
}

TEST(Bytes, EveryTruncationThrowsInvalidArgument) {
  ByteWriter out;
  out.u8(1);
  out.u16(2);
  out.u32(3);
  out.u64(4);
  out.f64(5);
  out.string("six");
  out.raw("seven");
  EXPECT_NO_THROW(read_record(out.bytes()));
  for (std::size_t n = 0; n < out.size(); ++n) {
    // A copy of exactly n bytes, so that a sanitizer sees a read past them.
    const std::string cut = out.bytes().substr(0, n);
    try {
      read_record(cut);
      ADD_FAILURE() << "accepted " << n << " bytes";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    }
  }
}

TEST(Bytes, LengthsPastTheEndDoNotWrap) {
  ByteWriter out;
  out.u32(0xFFFFFFFFU);
  EXPECT_THROW(ByteReader(out.bytes()).string(), Error);
  ByteReader in("abc");
  in.u8();
  EXPECT_THROW(in.raw(std::numeric_limits<std::size_t>::max()), Error);
  EXPECT_EQ(in.left(), 2U);  // a failed read consumes nothing
}

TEST(Bytes, CountIsBoundedByWhatIsLeft) {
  ByteWriter out;
  out.u32(2);
  out.u64(1);
  out.u64(2);
  EXPECT_EQ(ByteReader(out.bytes()).count(8), 2U);
  EXPECT_THROW(ByteReader(out.bytes()).count(9), Error);
  EXPECT_THROW(ByteReader(out.bytes()).expect_end(), Error);
}

TEST(Bytes, RandomWordsRoundTrip) {
  auto rng = testing::test_rng();
  ByteWriter out;
  std::vector<std::uint64_t> words(200);
  for (auto& w : words) {
    w = rng() >> (rng() % 64);
    out.u64(w);
    out.i64(static_cast<std::int64_t>(w));
  }
  ByteReader in(out.bytes());
  for (const auto w : words) {
    ASSERT_EQ(in.u64(), w);
    ASSERT_EQ(in.i64(), static_cast<std::int64_t>(w));
  }
}

}  // namespace
}  // namespace tandem::detail

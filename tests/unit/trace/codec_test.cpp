// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "support/random.hpp"
#include "tandem/error.hpp"
#include "tandem/trace.hpp"

namespace tandem {
namespace {

std::string random_text(std::mt19937_64& rng) {
  std::string text(rng() % 20, '\0');
  for (char& c : text) c = static_cast<char>(rng());
  return text;
}

RankSpans random_spans(std::mt19937_64& rng, std::size_t count) {
  RankSpans spans;
  spans.rank = static_cast<int>(rng() % 1000);
  spans.clock_offset_ns = static_cast<std::int64_t>(rng());
  for (std::size_t i = 0; i < count; ++i) {
    spans.spans.push_back({.kind = static_cast<SpanKind>(rng() % 3),
                           .name = random_text(rng),
                           .track = random_text(rng),
                           .begin_ns = static_cast<std::int64_t>(rng()),
                           .end_ns = static_cast<std::int64_t>(rng()),
                           .bytes = rng(),
                           .path = random_text(rng)});
  }
  return spans;
}

void expect_equal(const RankSpans& a, const RankSpans& b) {
  ASSERT_EQ(a.rank, b.rank);
  ASSERT_EQ(a.clock_offset_ns, b.clock_offset_ns);
  ASSERT_EQ(a.spans.size(), b.spans.size());
  for (std::size_t i = 0; i < a.spans.size(); ++i) {
    const Span &x = a.spans[i], &y = b.spans[i];
    ASSERT_EQ(x.kind, y.kind);
    ASSERT_EQ(x.name, y.name);
    ASSERT_EQ(x.track, y.track);
    ASSERT_EQ(x.begin_ns, y.begin_ns);
    ASSERT_EQ(x.end_ns, y.end_ns);
    ASSERT_EQ(x.bytes, y.bytes);
    ASSERT_EQ(x.path, y.path);
  }
}

// True if decoding threw what it may throw.
bool rejected(const std::string& bytes) {
  try {
    decode_spans(bytes);
    return false;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return true;
  }
}

TEST(SpanCodec, RoundTrips) {
  auto rng = testing::test_rng();
  expect_equal(decode_spans(encode_spans({})), {});
  for (std::size_t n = 0; n < 40; ++n) {
    const RankSpans spans = random_spans(rng, n);
    expect_equal(decode_spans(encode_spans(spans)), spans);
  }
}

TEST(SpanCodec, EveryTruncationAndEveryExtraByteIsRejected) {
  auto rng = testing::test_rng(1);
  const std::string bytes = encode_spans(random_spans(rng, 5));
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_TRUE(rejected(bytes.substr(0, n))) << n;
  EXPECT_TRUE(rejected(bytes + '\0'));
}

TEST(SpanCodec, OtherBytesAreRejected) {
  auto rng = testing::test_rng(2);
  std::string bytes = encode_spans(random_spans(rng, 1));
  EXPECT_TRUE(rejected(""));
  EXPECT_TRUE(rejected("hello, this is no trace at all"));
  for (const std::size_t at : {0U, 4U, 22U}) {  // magic, format, kind of the first span
    std::string wrong = bytes;
    wrong.at(at) = static_cast<char>(wrong.at(at) ^ 0x40);
    EXPECT_TRUE(rejected(wrong)) << at;
  }
}

TEST(SpanCodec, AnnouncedCountDoesNotAllocate) {
  std::string bytes = encode_spans({});
  // The count is the last field of an empty trace. Four billion spans would take hundreds of gigabytes.
  std::memset(bytes.data() + bytes.size() - 4, 0xFF, 4);
  EXPECT_TRUE(rejected(bytes));
  EXPECT_TRUE(rejected(bytes + std::string(1000, '\0')));
}

TEST(SpanCodec, DamagedBytesNeverDoHarm) {
  auto rng = testing::test_rng(3);
  const std::string bytes = encode_spans(random_spans(rng, 8));
  for (int i = 0; i < 5000; ++i) {
    std::string damaged = bytes;
    for (std::uint64_t k = rng() % 4 + 1; k > 0; --k) damaged[rng() % damaged.size()] = static_cast<char>(rng());
    static_cast<void>(rejected(damaged));  // accepted or rejected: no crash, no other exception
  }
}

}  // namespace
}  // namespace tandem

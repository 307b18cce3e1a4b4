// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/wire.hpp"

#include <gtest/gtest.h>

#include "support/random.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem::detail::wire {
namespace {

TEST(Wire, TheHelloHasItsWrittenForm) {
  JobToken token{};
  for (std::size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::uint8_t>(0xA0 + i);
  const std::string bytes = encode(Hello{0x01020304, token, -2, 7});
  const std::string expected = std::string("tandem\r\n") + "\x04\x03\x02\x01" +
                               "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf" + "\xfe\xff\xff\xff" +
                               std::string("\x07\0\0\0", 4);
  EXPECT_EQ(bytes, expected);
  HelloBytes fixed{};
  std::copy(bytes.begin(), bytes.end(), fixed.begin());
  const auto hello = decode_hello(fixed);
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->version, 0x01020304U);
  EXPECT_EQ(hello->token, token);
  EXPECT_EQ(hello->rank, -2);
  EXPECT_EQ(hello->size, 7);
  fixed[7] = 'x';
  EXPECT_FALSE(decode_hello(fixed).has_value());
}

TEST(Wire, MessagesComeBackAsTheyWere) {
  auto rng = testing::test_rng();
  for (int i = 0; i < 200; ++i) {
    const Message m{static_cast<Kind>(rng() % (static_cast<unsigned>(last_kind) + 1)), rng(),
                    static_cast<std::int64_t>(rng()), std::string(rng() % 50, 'k'), std::string(rng() % 500, 'v')};
    const std::string bytes = frame(m);
    const auto length = static_cast<std::size_t>(static_cast<unsigned char>(bytes[0])) +
                        256 * static_cast<std::size_t>(static_cast<unsigned char>(bytes[1]));
    ASSERT_EQ(length, bytes.size() - 4);
    const auto back = decode(std::string_view(bytes).substr(4));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->kind, m.kind);
    EXPECT_EQ(back->id, m.id);
    EXPECT_EQ(back->number, m.number);
    EXPECT_EQ(back->key, m.key);
    EXPECT_EQ(back->value, m.value);
  }
}

TEST(Wire, EveryTruncationBeforeTheValueIsMalformed) {
  const std::string bytes = frame({Kind::set, 1, 2, "key", ""}).substr(4);
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode(bytes.substr(0, n)).has_value()) << n;
  EXPECT_TRUE(decode(bytes).has_value());
}

TEST(Wire, KeyAndValueMayFillTheLimitButNoMore) {
  const std::string value(max_payload - 3, 'x');
  EXPECT_EQ(frame({Kind::set, 1, 0, "key", value}).size(), length_bytes + max_message);
  testing::error_of(ErrorCode::invalid_argument, [&] { frame({Kind::set, 1, 0, "key2", value}); });
}

TEST(Wire, RandomBytesNeverDoHarm) {
  auto rng = testing::test_rng();
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(rng() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(rng());
    if (!bytes.empty() && rng() % 2 == 0) bytes[0] = static_cast<char>(rng() % 16);
    const auto message = decode(bytes);
    if (message) {
      EXPECT_EQ(message->key.size() + message->value.size() + message_overhead, bytes.size());
    }
  }
}

TEST(Wire, NoticesComeBackAsTheyWere) {
  for (const auto kind : {Store::Notice::Kind::peer_lost, Store::Notice::Kind::aborted, Store::Notice::Kind::left}) {
    const auto back = notice_of(message_of(Kind::notice, {kind, -1, "why"}));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->rank, -1);
    EXPECT_EQ(back->reason, "why");
  }
}

}  // namespace
}  // namespace tandem::detail::wire

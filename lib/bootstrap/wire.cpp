// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/wire.hpp"

#include <fmt/format.h>

#include <limits>

#include "base/bytes.hpp"

namespace tandem::detail::wire {
namespace {

constexpr std::string_view magic = "tandem\r\n";

}  // namespace

std::string encode(const Hello& hello) {
  ByteWriter out;
  out.raw(magic);
  out.u32(hello.version);
  out.raw(hello.token.data(), hello.token.size());
  out.i32(hello.rank);
  out.i32(hello.size);
  return out.take();
}

std::optional<Hello> decode_hello(const HelloBytes& bytes) {
  ByteReader in(bytes.data(), bytes.size());
  if (in.raw(magic.size()) != magic) return std::nullopt;
  Hello hello;
  hello.version = in.u32();
  in.raw(hello.token.data(), hello.token.size());
  hello.rank = in.i32();
  hello.size = in.i32();
  return hello;
}

std::string frame(const Message& message) {
  const std::size_t payload = message.key.size() + message.value.size();
  if (message.key.size() > max_payload || message.value.size() > max_payload || payload > max_payload) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a store key and its value may have {} bytes together; key '{:.64}' and its value have {}",
                            max_payload, message.key, payload));
  }
  ByteWriter out;
  out.u32(static_cast<std::uint32_t>(message_overhead + payload));
  out.u8(static_cast<std::uint8_t>(message.kind));
  out.u64(message.id);
  out.i64(message.number);
  out.string(message.key);
  out.raw(message.value);
  return out.take();
}

std::optional<Message> decode(std::string_view bytes) {
  try {
    ByteReader in(bytes);
    const std::uint8_t kind = in.u8();
    if (kind > static_cast<std::uint8_t>(last_kind)) return std::nullopt;
    Message message;
    message.kind = static_cast<Kind>(kind);
    message.id = in.u64();
    message.number = in.i64();
    message.key = in.string();
    message.value = in.raw(in.left());
    return message;
  } catch (const Error&) {  // truncated
    return std::nullopt;
  }
}

Message message_of(Kind kind, const Store::Notice& notice) {
  return {kind, static_cast<std::uint64_t>(notice.kind), notice.rank, {}, notice.reason};
}

std::optional<Store::Notice> notice_of(const Message& message) {
  const bool good = message.id <= static_cast<std::uint64_t>(Store::Notice::Kind::left) &&
                    message.number >= std::numeric_limits<int>::min() &&
                    message.number <= std::numeric_limits<int>::max();
  if (!good) return std::nullopt;
  return Store::Notice{static_cast<Store::Notice::Kind>(message.id), static_cast<int>(message.number), message.value};
}

}  // namespace tandem::detail::wire

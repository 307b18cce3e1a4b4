// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/request_store.hpp"

/// What a TcpStore and its server say to each other. All numbers are little-endian.
///
/// A client opens with a hello of fixed length. The server answers with a frame, welcome or refused; from then on both
/// send frames: a u32 that counts the bytes that follow, then a message.
namespace tandem::detail::wire {

inline constexpr std::uint32_t version = 1;

/// Magic, version, token, rank and size keep their places in every version, so that two versions can tell each other
/// so.
struct Hello {
  std::uint32_t version = wire::version;
  JobToken token{};
  std::int32_t rank = 0;
  std::int32_t size = 0;
};
inline constexpr std::size_t hello_bytes = 8 + 4 + 16 + 4 + 4;
using HelloBytes = std::array<char, hello_bytes>;

std::string encode(const Hello& hello);
/// Nothing if the magic is wrong.
std::optional<Hello> decode_hello(const HelloBytes& bytes);

enum class Kind : std::uint8_t {
  // From the client. Those with an answer carry an id that the answer repeats.
  set,
  get,
  try_get,
  add,
  erase,
  cancel,    ///< the get of that id is not waited for any more
  good_bye,  ///< answered, then the server closes
  announce,
  // From both; the server repeats a client's.
  heartbeat,
  // From the server.
  welcome,  ///< number: heartbeat timeout in milliseconds
  refused,  ///< number: ErrorCode; value: why
  reply,    ///< key is empty; id says whose
  absent,   ///< the answer to a try_get of a key that is not set
  failure,  ///< an answer; number: ErrorCode; value: why
  notice,   ///< as announce: id is the Notice::Kind, number the rank, value the reason
};
inline constexpr auto last_kind = Kind::notice;

struct Message {
  Kind kind = Kind::heartbeat;
  std::uint64_t id = 0;
  std::int64_t number = 0;
  std::string key;
  std::string value;
};

inline constexpr std::size_t length_bytes = 4;
inline constexpr std::size_t message_overhead = 1 + 8 + 8 + 4;
/// What key and value may have together.
inline constexpr std::size_t max_payload = std::size_t{64} << 20;
inline constexpr std::size_t max_message = max_payload + message_overhead;

/// The whole frame. Throws invalid_argument if key and value exceed max_payload.
std::string frame(const Message& message);
/// Of the bytes that the frame's length counts. Nothing if they are malformed.
std::optional<Message> decode(std::string_view bytes);

/// The kinds set to erase are the requests.
constexpr Kind kind_of(Request::Op op) { return static_cast<Kind>(op); }
constexpr Request::Op op_of(Kind kind) { return static_cast<Request::Op>(kind); }
static_assert(kind_of(Request::Op::set) == Kind::set && kind_of(Request::Op::get) == Kind::get &&
              kind_of(Request::Op::try_get) == Kind::try_get && kind_of(Request::Op::add) == Kind::add &&
              kind_of(Request::Op::erase) == Kind::erase);

Message message_of(Kind kind, const Store::Notice& notice);
/// Nothing if the kind of notice is unknown.
std::optional<Store::Notice> notice_of(const Message& message);

}  // namespace tandem::detail::wire

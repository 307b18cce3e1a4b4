// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tandem::detail {

enum class OpKind : std::uint8_t { gather, reduce, exchange, clock };
const char* to_string(OpKind kind) noexcept;

/// The tag of a transfer says what it carries, so that operations in different order on two ranks never match, and
/// tests and messages can name it. 24 bits of sequence number (it wraps), 4 of kind, 8 of field, 28 of chunk.
struct Tag {
  std::uint32_t op = 0;
  OpKind kind = OpKind::gather;
  std::uint8_t field = 0;
  std::uint32_t chunk = 0;

  constexpr std::uint64_t encode() const {
    return (static_cast<std::uint64_t>(op & 0xFFFFFFU) << 40) | (static_cast<std::uint64_t>(kind) << 36) |
           (static_cast<std::uint64_t>(field) << 28) | (chunk & 0xFFFFFFFU);
  }
  static constexpr Tag decode(std::uint64_t v) {
    return {static_cast<std::uint32_t>(v >> 40), static_cast<OpKind>((v >> 36) & 0xFU),
            static_cast<std::uint8_t>((v >> 28) & 0xFFU), static_cast<std::uint32_t>(v & 0xFFFFFFFU)};
  }
};

}  // namespace tandem::detail

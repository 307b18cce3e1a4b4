// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

/// What travels on a connection. Numbers keep the machine's byte order: the magic of the hello shows a peer with
/// another.
namespace tandem::tcp {

constexpr std::uint64_t hello_magic = 0x70637430'6d646e74;
constexpr std::uint32_t wire_version = 1;

/// A connection begins with three of them: the connecting side asks, the listening side accepts, and the connecting
/// side confirms that this is the connection it will use, for it may have given up on the answer and tried elsewhere.
struct Hello {
  enum Step : std::uint32_t { ask = 1, accept = 2, confirm = 3 };
  std::uint64_t magic = hello_magic;
  std::uint32_t version = wire_version;
  std::uint32_t step = ask;
  std::array<std::uint8_t, 16> group{};
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t size = 0;
  std::uint32_t reserved = 0;

  bool operator==(const Hello&) const = default;
};
static_assert(sizeof(Hello) == 48);

/// Then frames. The receiver of a transfer speaks first (`ready`), so that data never arrives before its buffer is
/// known.
struct Frame {
  enum Kind : std::uint32_t {
    ready = 1,     // the next receive of `tag`: it wants `bytes`, and calls it `id`
    data = 2,      // `bytes` bytes follow: the next ones of receive `id`
    mismatch = 3,  // receive `id` met a send of `bytes` bytes
    bye = 4        // the last one: an orderly close
  };
  std::uint32_t kind = 0;
  std::uint32_t reserved = 0;
  std::uint64_t id = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Frame) == 32);

}  // namespace tandem::tcp

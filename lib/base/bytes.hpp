// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tandem/error.hpp"

namespace tandem::detail {

/// Appends values in little-endian order, whatever the machine's own. ByteReader reads them back in the same order.
class ByteWriter {
 public:
  void u8(std::uint8_t v) { append(v); }
  void u16(std::uint16_t v) { append(v); }
  void u32(std::uint32_t v) { append(v); }
  void u64(std::uint64_t v) { append(v); }
  void i32(std::int32_t v) { append(static_cast<std::uint32_t>(v)); }
  void i64(std::int64_t v) { append(static_cast<std::uint64_t>(v)); }
  void f64(double v) { append(std::bit_cast<std::uint64_t>(v)); }
  /// Length as u32, then the bytes. Throws invalid_argument above 2^32 - 1 bytes.
  void string(std::string_view v) {
    if (v.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(ErrorCode::invalid_argument,
                  "a string of " + std::to_string(v.size()) + " bytes is too long to encode");
    }
    u32(static_cast<std::uint32_t>(v.size()));
    raw(v);
  }
  void raw(std::string_view v) { bytes_.append(v); }
  void raw(const void* data, std::size_t bytes) {
    if (bytes > 0) bytes_.append(static_cast<const char*>(data), bytes);
  }

  std::size_t size() const noexcept { return bytes_.size(); }
  const std::string& bytes() const noexcept { return bytes_; }
  std::string take() noexcept { return std::move(bytes_); }

 private:
  template <class T>
  void append(T v) {
    static_assert(std::is_unsigned_v<T>);
    char encoded[sizeof(T)];
    for (std::size_t i = 0; i < sizeof(T); ++i) encoded[i] = static_cast<char>((v >> (8 * i)) & 0xFFU);
    bytes_.append(encoded, sizeof(T));
  }

  std::string bytes_;
};

/// Reads what ByteWriter wrote. Every read throws invalid_argument if fewer bytes are left than it needs. Keeps a view:
/// the bytes must outlive the reader and the views it hands out.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  ByteReader(const void* data, std::size_t bytes) : bytes_(static_cast<const char*>(data), bytes) {}

  std::uint8_t u8() { return read<std::uint8_t>(); }
  std::uint16_t u16() { return read<std::uint16_t>(); }
  std::uint32_t u32() { return read<std::uint32_t>(); }
  std::uint64_t u64() { return read<std::uint64_t>(); }
  std::int32_t i32() { return static_cast<std::int32_t>(read<std::uint32_t>()); }
  std::int64_t i64() { return static_cast<std::int64_t>(read<std::uint64_t>()); }
  double f64() { return std::bit_cast<double>(read<std::uint64_t>()); }
  std::string string() { return std::string(view()); }
  /// A string without the copy.
  std::string_view view() { return raw(u32()); }
  std::string_view raw(std::size_t bytes) {
    need(bytes);
    const std::string_view v = bytes_.substr(position_, bytes);
    position_ += bytes;
    return v;
  }
  void raw(void* destination, std::size_t bytes) {
    const std::string_view v = raw(bytes);
    if (bytes > 0) std::memcpy(destination, v.data(), bytes);
  }
  /// A u32 that counts elements of at least `min_bytes` bytes each. Throws if the bytes left could not hold that many,
  /// so that a caller may reserve memory for them without trusting the sender.
  std::size_t count(std::size_t min_bytes) {
    const std::size_t n = u32();
    if (n > left() / min_bytes) {
      throw Error(ErrorCode::invalid_argument,
                  "truncated: " + std::to_string(n) + " elements announced, " + std::to_string(left()) + " bytes left");
    }
    return n;
  }

  std::size_t left() const noexcept { return bytes_.size() - position_; }
  bool at_end() const noexcept { return left() == 0; }
  /// Throws invalid_argument if bytes are left over.
  void expect_end() const {
    if (!at_end()) throw Error(ErrorCode::invalid_argument, std::to_string(left()) + " bytes too many");
  }

 private:
  void need(std::size_t bytes) const {
    if (bytes > left()) {
      throw Error(ErrorCode::invalid_argument, "truncated: " + std::to_string(bytes) + " bytes wanted, " +
                                                   std::to_string(left()) + " left of " +
                                                   std::to_string(bytes_.size()));
    }
  }
  template <class T>
  T read() {
    need(sizeof(T));
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      v |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes_[position_ + i])) << (8 * i);
    }
    position_ += sizeof(T);
    return static_cast<T>(v);
  }

  std::string_view bytes_;
  std::size_t position_ = 0;
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::detail {

/// A 64-bit hash that is the same on every machine, compiler and run, so that ranks can compare it. It finds
/// differences; it does not resist an adversary. The order of the values counts, and a string's length does too:
/// "ab","c" and "a","bc" differ.
class Hash {
 public:
  constexpr explicit Hash(std::uint64_t seed = 0) : state_(mix(seed + golden)) {}

  constexpr Hash& combine(std::uint64_t v) {
    state_ = mix(std::rotl(state_, 5) + golden + mix(v));
    return *this;
  }
  template <std::signed_integral T>
  constexpr Hash& combine(T v) {
    return combine(static_cast<std::uint64_t>(static_cast<std::int64_t>(v)));
  }
  template <std::unsigned_integral T>
  constexpr Hash& combine(T v) {
    return combine(static_cast<std::uint64_t>(v));
  }
  /// By its bits: -0.0 and 0.0 differ.
  constexpr Hash& combine(double v) { return combine(std::bit_cast<std::uint64_t>(v)); }
  constexpr Hash& combine(std::string_view v) {
    combine(static_cast<std::uint64_t>(v.size()));
    for (std::size_t i = 0; i < v.size(); i += 8) combine(word_at(v, i));
    return *this;
  }
  constexpr Hash& combine(const char* v) { return combine(std::string_view(v)); }
  template <class Range>
  constexpr Hash& combine_range(const Range& values) {
    std::uint64_t n = 0;
    for (const auto& v : values) {
      combine(v);
      ++n;
    }
    return combine(n);
  }

  constexpr std::uint64_t value() const { return state_; }

 private:
  static constexpr std::uint64_t golden = 0x9E3779B97F4A7C15ULL;

  // The finalizer of MurmurHash3 (public domain): a bijection in which every input bit reaches every output bit.
  static constexpr std::uint64_t mix(std::uint64_t v) {
    v = (v ^ (v >> 33)) * 0xFF51AFD7ED558CCDULL;
    v = (v ^ (v >> 33)) * 0xC4CEB9FE1A85EC53ULL;
    return v ^ (v >> 33);
  }
  static constexpr std::uint64_t word_at(std::string_view v, std::size_t begin) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < 8 && begin + i < v.size(); ++i) {
      word |= static_cast<std::uint64_t>(static_cast<unsigned char>(v[begin + i])) << (8 * i);
    }
    return word;
  }

  std::uint64_t state_;
};

}  // namespace tandem::detail

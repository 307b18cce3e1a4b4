// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tandem::cli {

/// Numbers by their place, not by their turn: value i of a Noise depends on its key and i alone.
class Noise {
 public:
  constexpr explicit Noise(std::uint64_t key) : key_(mix(key)) {}
  /// An independent generator for each (a, b).
  constexpr Noise at(std::uint64_t a, std::uint64_t b = 0) const { return Noise(mix(key_ + mix(a)) + b); }

  /// 64 random bits.
  constexpr std::uint64_t bits(std::uint64_t i) const { return mix(key_ + golden * (i + 1)); }

  /// Mean 0, variance `scale` squared, triangular in +-2.45 scale: as good as a normal here, and fast.
  void fill(float* out, std::size_t count, float scale) const {
    const float unit = scale * std::sqrt(6.0F) / 65536.0F;
    const auto value = [unit](std::uint64_t half) {
      return static_cast<float>(static_cast<std::int32_t>(half & 0xFFFF) +
                                static_cast<std::int32_t>(half >> 16 & 0xFFFF) - 65535) *
             unit;
    };
    for (std::size_t i = 0; i < count; i += 2) {
      const std::uint64_t pair = bits(i / 2);
      out[i] = value(pair);
      if (i + 1 < count) out[i + 1] = value(pair >> 32);
    }
  }

 private:
  static constexpr std::uint64_t golden = 0x9E3779B97F4A7C15ULL;
  // The output function of SplitMix64 (Steele, Lea, Flood 2014).
  static constexpr std::uint64_t mix(std::uint64_t v) {
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ULL;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
    return v ^ (v >> 31);
  }

  std::uint64_t key_;
};

}  // namespace tandem::cli

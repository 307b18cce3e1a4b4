// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tandem::detail::cpu {
namespace {

constexpr std::int64_t lanes = 4;
using Vec = float __attribute__((vector_size(16)));

inline Vec zero() { return Vec{0, 0, 0, 0}; }
inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
inline Vec relu_of(Vec v) { return v < zero() ? zero() : v; }
inline float sum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline Vec load_bf16(const std::uint16_t* p) {
  typedef std::uint32_t Bits __attribute__((vector_size(16)));
  const Bits bits = Bits{p[0], p[1], p[2], p[3]} << 16;
  Vec v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

}  // namespace
}  // namespace tandem::detail::cpu

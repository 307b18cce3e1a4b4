// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "wgmma_operands.hpp"

/// Warpgroup matrix instructions of sparse attention and the indexer loss, bf16 with fp32 accumulators: D[64 x N] (+)=
/// A[64 x 16] B[16 x N]. `accumulate` false starts from zero. Operands in shared memory are given by the lower words of
/// their descriptors (see swizzled_operand): the upper one is the same for all, and 64-bit sums would cost registers.
namespace tandem::detail::sm90 {
// clang-format off

#define TANDEM_DESCRIPTOR(name, low) "mov.b64 " name ", {" low ", 0x40000040};\n"

// `count` accumulators; `p` is the name of the operand that says whether they are added to.
#define TANDEM_WGMMA(count, instruction, descriptors, operands, p, ...) \
  asm volatile( \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " p ", 0;\n" descriptors \
      "wgmma.mma_async.sync.aligned." instruction ".f32.bf16.bf16 {" TANDEM_NAMES_##count "}, " operands ";\n}\n" \
      : TANDEM_ACCUMULATORS_##count(0) \
      : __VA_ARGS__, "r"(static_cast<int>(accumulate)))

/// Both operands K-major in shared memory.
__device__ __forceinline__ void wgmma_kk(float (&acc)[4], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(4, "m64n8k16", TANDEM_DESCRIPTOR("a", "%4") TANDEM_DESCRIPTOR("b", "%5"), "a, b, p, 1, 1, 0, 0", "%6", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_kk(float (&acc)[8], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(8, "m64n16k16", TANDEM_DESCRIPTOR("a", "%8") TANDEM_DESCRIPTOR("b", "%9"), "a, b, p, 1, 1, 0, 0", "%10", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_kk(float (&acc)[16], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(16, "m64n32k16", TANDEM_DESCRIPTOR("a", "%16") TANDEM_DESCRIPTOR("b", "%17"), "a, b, p, 1, 1, 0, 0", "%18", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_kk(float (&acc)[32], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(32, "m64n64k16", TANDEM_DESCRIPTOR("a", "%32") TANDEM_DESCRIPTOR("b", "%33"), "a, b, p, 1, 1, 0, 0", "%34", "r"(a), "r"(b));
}

/// A lies transposed in shared memory, B K-major.
__device__ __forceinline__ void wgmma_tk(float (&acc)[4], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(4, "m64n8k16", TANDEM_DESCRIPTOR("a", "%4") TANDEM_DESCRIPTOR("b", "%5"), "a, b, p, 1, 1, 1, 0", "%6", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_tk(float (&acc)[8], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(8, "m64n16k16", TANDEM_DESCRIPTOR("a", "%8") TANDEM_DESCRIPTOR("b", "%9"), "a, b, p, 1, 1, 1, 0", "%10", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_tk(float (&acc)[16], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(16, "m64n32k16", TANDEM_DESCRIPTOR("a", "%16") TANDEM_DESCRIPTOR("b", "%17"), "a, b, p, 1, 1, 1, 0", "%18", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_tk(float (&acc)[32], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(32, "m64n64k16", TANDEM_DESCRIPTOR("a", "%32") TANDEM_DESCRIPTOR("b", "%33"), "a, b, p, 1, 1, 1, 0", "%34", "r"(a), "r"(b));
}

/// A K-major in shared memory, B transposed.
__device__ __forceinline__ void wgmma_kt(float (&acc)[32], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(32, "m64n64k16", TANDEM_DESCRIPTOR("a", "%32") TANDEM_DESCRIPTOR("b", "%33"), "a, b, p, 1, 1, 0, 1", "%34", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_kt(float (&acc)[128], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(128, "m64n256k16", TANDEM_DESCRIPTOR("a", "%128") TANDEM_DESCRIPTOR("b", "%129"), "a, b, p, 1, 1, 0, 1", "%130", "r"(a), "r"(b));
}
/// Both transposed in shared memory.
__device__ __forceinline__ void wgmma_tt(float (&acc)[32], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(32, "m64n64k16", TANDEM_DESCRIPTOR("a", "%32") TANDEM_DESCRIPTOR("b", "%33"), "a, b, p, 1, 1, 1, 1", "%34", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_tt(float (&acc)[64], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(64, "m64n128k16", TANDEM_DESCRIPTOR("a", "%64") TANDEM_DESCRIPTOR("b", "%65"), "a, b, p, 1, 1, 1, 1", "%66", "r"(a), "r"(b));
}
/// A in registers, B transposed in shared memory.
__device__ __forceinline__ void wgmma_rt(float (&acc)[32], const std::uint32_t (&a)[4], std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(32, "m64n64k16", TANDEM_DESCRIPTOR("b", "%36"),
                   "{%32, %33, %34, %35}, b, p, 1, 1, 1", "%37",
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void wgmma_rt(float (&acc)[128], const std::uint32_t (&a)[4], std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA(128, "m64n256k16", TANDEM_DESCRIPTOR("b", "%132"),
                    "{%128, %129, %130, %131}, b, p, 1, 1, 1", "%133",
                    "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

#undef TANDEM_DESCRIPTOR
#undef TANDEM_WGMMA
// clang-format on
}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "wgmma_operands.hpp"

/// The one shape of warpgroup matrix instruction that the indexer uses: 64 keys by 256 (query, head) columns. A single
/// shape for all tiles is what makes a score a pure function of its two rows.
namespace tandem::detail::sm90 {
// clang-format off

// `instruction` on all 128 accumulators of a thread; `flags` are its last operands.
#define TANDEM_WGMMA_M64N256(instruction, flags) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n" \
      instruction " " \
      "{" TANDEM_NAMES_128 "}, " \
      "%128, %129, p, " flags ";\n}\n" \
      : TANDEM_ACCUMULATORS_128(0) \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))

/// acc[64 x 256] (+)= A[64 x 16] * B[256 x 16]^T, both K-major in shared memory; `accumulate` false starts from zero.
__device__ __forceinline__ void wgmma_m64n256k16_bf16(float (&acc)[128], std::uint64_t a, std::uint64_t b, bool accumulate) {
  TANDEM_WGMMA_M64N256("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "1, 1, 0, 0");
}

/// The same of A[64 x 32] and B[256 x 32]^T.
__device__ __forceinline__ void wgmma_m64n256k32_e4m3(float (&acc)[128], std::uint64_t a, std::uint64_t b, bool accumulate) {
  TANDEM_WGMMA_M64N256("wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3", "1, 1");
}

#undef TANDEM_WGMMA_M64N256
// clang-format on
}  // namespace tandem::detail::sm90

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Warpgroup matrix instructions of sparse attention, bf16 with fp32 accumulators: D[64 x N] (+)= A[64 x 16] B[16 x N].
/// `accumulate` false starts from zero. Operands in shared memory are given by the lower words of their descriptors
/// (see swizzled_operand): the upper one is the same for all, and 64-bit sums would cost registers.
namespace tandem::detail::sm90 {
// clang-format off

#define TANDEM_DESCRIPTOR(name, low) "mov.b64 " name ", {" low ", 0x40000040};\n"

#define TANDEM_WGMMA_N8(instruction, descriptors, operands, p, ...) \
  asm volatile( \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " p ", 0;\n" descriptors \
      instruction " " \
      "{%0, %1, %2, %3}, " \
      operands ";\n}\n" \
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]) \
      : __VA_ARGS__, "r"(static_cast<int>(accumulate)))

#define TANDEM_WGMMA_N16(instruction, descriptors, operands, p, ...) \
  asm volatile( \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " p ", 0;\n" descriptors \
      instruction " " \
      "{%0, %1, %2, %3, %4, %5, %6, %7}, " \
      operands ";\n}\n" \
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), \
        "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7]) \
      : __VA_ARGS__, "r"(static_cast<int>(accumulate)))

#define TANDEM_WGMMA_N32(instruction, descriptors, operands, p, ...) \
  asm volatile( \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " p ", 0;\n" descriptors \
      instruction " " \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " \
      operands ";\n}\n" \
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), \
        "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7]), \
        "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11]), \
        "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15]) \
      : __VA_ARGS__, "r"(static_cast<int>(accumulate)))

#define TANDEM_WGMMA_N64(instruction, descriptors, operands, p, ...) \
  asm volatile( \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " p ", 0;\n" descriptors \
      instruction " " \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
      operands ";\n}\n" \
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), \
        "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7]), \
        "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11]), \
        "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15]), \
        "+f"(acc[16]), "+f"(acc[17]), "+f"(acc[18]), "+f"(acc[19]), \
        "+f"(acc[20]), "+f"(acc[21]), "+f"(acc[22]), "+f"(acc[23]), \
        "+f"(acc[24]), "+f"(acc[25]), "+f"(acc[26]), "+f"(acc[27]), \
        "+f"(acc[28]), "+f"(acc[29]), "+f"(acc[30]), "+f"(acc[31]) \
      : __VA_ARGS__, "r"(static_cast<int>(accumulate)))

#define TANDEM_WGMMA_N256(instruction, descriptors, operands, p, ...) \
  asm volatile( \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " p ", 0;\n" descriptors \
      instruction " " \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
      operands ";\n}\n" \
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), \
        "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7]), \
        "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11]), \
        "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15]), \
        "+f"(acc[16]), "+f"(acc[17]), "+f"(acc[18]), "+f"(acc[19]), \
        "+f"(acc[20]), "+f"(acc[21]), "+f"(acc[22]), "+f"(acc[23]), \
        "+f"(acc[24]), "+f"(acc[25]), "+f"(acc[26]), "+f"(acc[27]), \
        "+f"(acc[28]), "+f"(acc[29]), "+f"(acc[30]), "+f"(acc[31]), \
        "+f"(acc[32]), "+f"(acc[33]), "+f"(acc[34]), "+f"(acc[35]), \
        "+f"(acc[36]), "+f"(acc[37]), "+f"(acc[38]), "+f"(acc[39]), \
        "+f"(acc[40]), "+f"(acc[41]), "+f"(acc[42]), "+f"(acc[43]), \
        "+f"(acc[44]), "+f"(acc[45]), "+f"(acc[46]), "+f"(acc[47]), \
        "+f"(acc[48]), "+f"(acc[49]), "+f"(acc[50]), "+f"(acc[51]), \
        "+f"(acc[52]), "+f"(acc[53]), "+f"(acc[54]), "+f"(acc[55]), \
        "+f"(acc[56]), "+f"(acc[57]), "+f"(acc[58]), "+f"(acc[59]), \
        "+f"(acc[60]), "+f"(acc[61]), "+f"(acc[62]), "+f"(acc[63]), \
        "+f"(acc[64]), "+f"(acc[65]), "+f"(acc[66]), "+f"(acc[67]), \
        "+f"(acc[68]), "+f"(acc[69]), "+f"(acc[70]), "+f"(acc[71]), \
        "+f"(acc[72]), "+f"(acc[73]), "+f"(acc[74]), "+f"(acc[75]), \
        "+f"(acc[76]), "+f"(acc[77]), "+f"(acc[78]), "+f"(acc[79]), \
        "+f"(acc[80]), "+f"(acc[81]), "+f"(acc[82]), "+f"(acc[83]), \
        "+f"(acc[84]), "+f"(acc[85]), "+f"(acc[86]), "+f"(acc[87]), \
        "+f"(acc[88]), "+f"(acc[89]), "+f"(acc[90]), "+f"(acc[91]), \
        "+f"(acc[92]), "+f"(acc[93]), "+f"(acc[94]), "+f"(acc[95]), \
        "+f"(acc[96]), "+f"(acc[97]), "+f"(acc[98]), "+f"(acc[99]), \
        "+f"(acc[100]), "+f"(acc[101]), "+f"(acc[102]), "+f"(acc[103]), \
        "+f"(acc[104]), "+f"(acc[105]), "+f"(acc[106]), "+f"(acc[107]), \
        "+f"(acc[108]), "+f"(acc[109]), "+f"(acc[110]), "+f"(acc[111]), \
        "+f"(acc[112]), "+f"(acc[113]), "+f"(acc[114]), "+f"(acc[115]), \
        "+f"(acc[116]), "+f"(acc[117]), "+f"(acc[118]), "+f"(acc[119]), \
        "+f"(acc[120]), "+f"(acc[121]), "+f"(acc[122]), "+f"(acc[123]), \
        "+f"(acc[124]), "+f"(acc[125]), "+f"(acc[126]), "+f"(acc[127]) \
      : __VA_ARGS__, "r"(static_cast<int>(accumulate)))


/// Both operands K-major in shared memory.
__device__ __forceinline__ void wgmma_kk(float (&acc)[4], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N8("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%4") TANDEM_DESCRIPTOR("b", "%5"), "a, b, p, 1, 1, 0, 0", "%6", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_kk(float (&acc)[8], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N16("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%8") TANDEM_DESCRIPTOR("b", "%9"), "a, b, p, 1, 1, 0, 0", "%10", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_kk(float (&acc)[16], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N32("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%16") TANDEM_DESCRIPTOR("b", "%17"), "a, b, p, 1, 1, 0, 0", "%18", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_kk(float (&acc)[32], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N64("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%32") TANDEM_DESCRIPTOR("b", "%33"), "a, b, p, 1, 1, 0, 0", "%34", "r"(a), "r"(b));
}

/// A lies transposed in shared memory, B K-major.
__device__ __forceinline__ void wgmma_tk(float (&acc)[4], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N8("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%4") TANDEM_DESCRIPTOR("b", "%5"), "a, b, p, 1, 1, 1, 0", "%6", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_tk(float (&acc)[8], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N16("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%8") TANDEM_DESCRIPTOR("b", "%9"), "a, b, p, 1, 1, 1, 0", "%10", "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_tk(float (&acc)[16], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N32("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%16") TANDEM_DESCRIPTOR("b", "%17"), "a, b, p, 1, 1, 1, 0", "%18", "r"(a), "r"(b));
}

/// A K-major in shared memory, B transposed.
__device__ __forceinline__ void wgmma_kt(float (&acc)[128], std::uint32_t a, std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N256("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("a", "%128") TANDEM_DESCRIPTOR("b", "%129"), "a, b, p, 1, 1, 0, 1", "%130", "r"(a), "r"(b));
}
/// A in registers, B transposed in shared memory.
__device__ __forceinline__ void wgmma_rt(float (&acc)[128], const std::uint32_t (&a)[4], std::uint32_t b, bool accumulate) {
  TANDEM_WGMMA_N256("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", TANDEM_DESCRIPTOR("b", "%132"),
                    "{%128, %129, %130, %131}, b, p, 1, 1, 1", "%133",
                    "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

#undef TANDEM_DESCRIPTOR
#undef TANDEM_WGMMA_N8
#undef TANDEM_WGMMA_N16
#undef TANDEM_WGMMA_N32
#undef TANDEM_WGMMA_N64
#undef TANDEM_WGMMA_N256
// clang-format on
}  // namespace tandem::detail::sm90

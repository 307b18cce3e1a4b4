// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX2 and FMA: only data is visible outside, so that no code of this file runs before micro() has looked
// at the processor.
#include "kernels/cpu/micro_vec_avx2.hpp"
// The loops use the Vec above.
#include "kernels/cpu/micro_loops.hpp"

namespace tandem::detail::cpu {

extern constinit const Micro micro_avx2_table;
constinit const Micro micro_avx2_table = table("avx2", 2);

}  // namespace tandem::detail::cpu

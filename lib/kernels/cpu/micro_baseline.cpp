// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/micro_vec_generic.hpp"
// The loops use the Vec above.
#include "kernels/cpu/micro_loops.hpp"

namespace tandem::detail::cpu {

const Micro& micro_baseline() {
  static constexpr Micro baseline = table("baseline", 1);
  return baseline;
}

#if defined(__x86_64__)
extern const Micro micro_avx2_table;
const Micro* micro_avx2() {
  static const bool here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return here ? &micro_avx2_table : nullptr;
}
#else
const Micro* micro_avx2() { return nullptr; }
#endif

const Micro& micro() {
  const Micro* best = micro_avx2();
  return best != nullptr ? *best : micro_baseline();
}

}  // namespace tandem::detail::cpu

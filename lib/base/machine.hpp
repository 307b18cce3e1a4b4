// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/sysinfo.h>

#include <cstdint>

namespace tandem::detail {

/// Bytes of memory and swap. What is larger must be refused: with overcommit the system grants what it cannot keep, and
/// kills whom it likes when it is touched.
inline std::uint64_t machine_memory() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return UINT64_MAX;
  return (static_cast<std::uint64_t>(info.totalram) + info.totalswap) * info.mem_unit;
}

}  // namespace tandem::detail

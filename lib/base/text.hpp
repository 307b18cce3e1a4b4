// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::detail {

/// "850 ns", "12 us", "3.4 ms", "12 s", "3 min 20 s": three significant digits at most, whole seconds from 10 s on.
inline std::string format_duration(std::chrono::nanoseconds d) {
  const std::int64_t ns = d.count();
  if (ns < 0) return "-" + format_duration(std::chrono::nanoseconds(ns == INT64_MIN ? INT64_MAX : -ns));
  if (ns < 1000) return fmt::format("{} ns", ns);
  struct Unit {
    const char* name;
    double ns;
  };
  for (const Unit unit : {Unit{"us", 1e3}, Unit{"ms", 1e6}, Unit{"s", 1e9}}) {
    const double v = static_cast<double>(ns) / unit.ns;
    if (v < 9.95) return fmt::format("{:.2g} {}", v, unit.name);
    if (v < (unit.ns < 1e9 ? 999.5 : 59.5)) return fmt::format("{:.0f} {}", v, unit.name);
  }
  const std::int64_t seconds = ns / 1'000'000'000 + (ns % 1'000'000'000 >= 500'000'000 ? 1 : 0);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds % 3600 / 60);
}

/// "512 B", "1.4 MiB": powers of 1024.
inline std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double v = static_cast<double>(bytes) / 1024;
  for (const char* unit : {"KiB", "MiB", "GiB", "TiB"}) {
    if (v < 9.95) return fmt::format("{:.1f} {}", v, unit);
    if (v < 1023.5) return fmt::format("{:.0f} {}", v, unit);
    v /= 1024;
  }
  return fmt::format("{:.0f} PiB", v);
}

/// "rank 3", "ranks 3, 5, 7": for messages.
inline std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace tandem::log {

enum class Level { error, warn, info, debug };

/// The level of TANDEM_LOG (error, warn, info, debug; default warn).
Level level() noexcept;
inline bool enabled(Level l) noexcept { return l <= level(); }
/// Shown in front of every line of this thread's process: "[tandem rank 2]". Set when the process has one rank.
void set_process_rank(int rank) noexcept;
/// One line on stderr, written at once so that lines of ranks do not mix.
void write(Level level, std::string_view message) noexcept;

template <class... Args>
void error(fmt::format_string<Args...> f, Args&&... args) {
  if (enabled(Level::error)) write(Level::error, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> f, Args&&... args) {
  if (enabled(Level::warn)) write(Level::warn, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> f, Args&&... args) {
  if (enabled(Level::info)) write(Level::info, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> f, Args&&... args) {
  if (enabled(Level::debug)) write(Level::debug, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace tandem::log

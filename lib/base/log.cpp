// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>

#include "base/env.hpp"

namespace tandem::log {
namespace {

std::atomic<int> process_rank{-1};

constexpr const char* names[] = {"error", "warn", "info", "debug"};

std::optional<Level> parse(std::string_view text) {
  for (int i = 0; i < 4; ++i) {
    if (text == names[i]) return static_cast<Level>(i);
  }
  return std::nullopt;
}

std::string compose(Level l, std::string_view message) {
  const int rank = process_rank.load(std::memory_order_relaxed);
  std::string line = rank < 0 ? "[tandem] " : "[tandem rank " + std::to_string(rank) + "] ";
  line.append(names[static_cast<int>(l)]).append(": ");
  // One line stays one line, also where a message quotes text that does not.
  for (const char c : message) line.push_back(c == '\n' || c == '\r' ? ' ' : c);
  line.push_back('\n');
  return line;
}

Level read_level() {
  const std::optional<std::string> text = Env::read_log();
  if (!text) return Level::warn;
  const std::optional<Level> parsed = parse(*text);
  if (!parsed) {
    write(Level::warn, "TANDEM_LOG is '" + *text + "', which is none of error, warn, info, debug; using warn");
  }
  return parsed.value_or(Level::warn);
}

}  // namespace

Level level() noexcept {
  static const Level value = read_level();
  return value;
}

void set_process_rank(int rank) noexcept { process_rank.store(rank, std::memory_order_relaxed); }

void write(Level l, std::string_view message) noexcept {
  try {
    const std::string line = compose(l, message);
    // Part of a line is written on only where the kernel took part of it (a full pipe); a lost line is not worth an
    // error.
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (n == 0 || errno != EINTR) {
        return;
      }
    }
  } catch (...) {
    // No memory for the line: it is dropped, as write() promises not to throw.
  }
}

}  // namespace tandem::log

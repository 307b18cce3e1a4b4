// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "base/text.hpp"
#include "process.hpp"

namespace tandem::cli {
namespace {

constexpr std::string_view clear_line = "\r\x1b[K";

bool can_rewrite_stderr() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

Progress::Progress()
    : Progress({[](std::string_view text) { write_all(STDERR_FILENO, text); }, can_rewrite_stderr(), Clock::now}) {}

Progress::Progress(Output output) : output_(std::move(output)), begin_(output_.now()) {}

Progress::~Progress() {
  if (on_screen_) output_.write(clear_line);
}

void Progress::start(std::string_view what, std::int64_t rows) {
  what_ = what;
  rows_ = rows;
}

void Progress::reach(std::int64_t done) {
  const Clock::duration taken = output_.now() - begin_;
  if (taken < due_) return;
  due_ = output_.terminal ? taken + interval : 2 * taken;
  const std::string line =
      fmt::format("tandem: {}: {} of {} rows ({})", what_, done, rows_, detail::format_duration(taken));
  output_.write(output_.terminal ? fmt::format("{}{}", clear_line, line) : line + "\n");
  on_screen_ = output_.terminal;
}

}  // namespace tandem::cli

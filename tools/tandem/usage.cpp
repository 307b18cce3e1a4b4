// SPDX-License-Identifier: Apache-2.0
#include "usage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::cli {
namespace {

template <class T>
bool parse_all(std::string_view text, T& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && stop == text.data() + text.size();
}

}  // namespace

std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  if (!parse_all(text, value)) throw UsageError(fmt::format("{}: '{}' is not a whole number", option, text));
  if (value < min) throw UsageError(fmt::format("{}: {} is too small; it must be at least {}", option, value, min));
  if (value > max) throw UsageError(fmt::format("{}: {} is too large; it must be at most {}", option, value, max));
  return value;
}

std::uint64_t parse_seed(std::string_view option, std::string_view text) {
  std::uint64_t value = 0;
  if (!parse_all(text, value)) throw UsageError(fmt::format("{}: '{}' is not a whole number from 0 on", option, text));
  return value;
}

std::vector<std::int64_t> parse_integers(std::string_view option, std::string_view text, std::int64_t min,
                                         std::int64_t max) {
  std::vector<std::int64_t> values;
  while (true) {
    const std::size_t comma = text.find(',');
    values.push_back(parse_integer(option, text.substr(0, comma), min, max));
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

std::chrono::milliseconds parse_seconds(std::string_view option, std::string_view text) {
  double seconds = 0;
  if (!parse_all(text, seconds) || !std::isfinite(seconds)) {
    throw UsageError(fmt::format("{}: '{}' is not a number of seconds", option, text));
  }
  if (seconds < 1e-3 || seconds > 86400) {
    throw UsageError(fmt::format("{}: {} s is out of range; it must be from 0.001 s to 86400 s", option, text));
  }
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

std::size_t parse_choice(std::string_view option, std::string_view text, const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    throw UsageError(fmt::format("{}: '{}' is unknown; it is one of {}", option, text, fmt::join(choices, ", ")));
  }
  return static_cast<std::size_t>(found - choices.begin());
}

}  // namespace tandem::cli

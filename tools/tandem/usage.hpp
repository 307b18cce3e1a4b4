// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// Reading option values strictly. All of it throws UsageError, whose text names the option and what it got.
namespace tandem::cli {

/// The command line asks for something that cannot be. The process exits with exit_usage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr int exit_ok = 0;
constexpr int exit_failure = 1;
constexpr int exit_usage = 2;

std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t min, std::int64_t max);
std::uint64_t parse_seed(std::string_view option, std::string_view text);
/// "0,12,7"; each in [min, max].
std::vector<std::int64_t> parse_integers(std::string_view option, std::string_view text, std::int64_t min,
                                         std::int64_t max);
/// Seconds, fractions allowed, more than 0; at least one millisecond, at most a day.
std::chrono::milliseconds parse_seconds(std::string_view option, std::string_view text);
/// The index of `text` in `choices`.
std::size_t parse_choice(std::string_view option, std::string_view text, const std::vector<std::string>& choices);

}  // namespace tandem::cli

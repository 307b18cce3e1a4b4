// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <random>

#include "base/hash.hpp"
#include "tandem/store.hpp"

namespace tandem {
namespace {

JobToken token_of(std::uint64_t low, std::uint64_t high) {
  JobToken token{};
  for (std::size_t i = 0; i < 8; ++i) {
    token[i] = static_cast<std::uint8_t>(low >> (8 * i));
    token[8 + i] = static_cast<std::uint8_t>(high >> (8 * i));
  }
  return token;
}

}  // namespace

JobToken random_job_token() {
  // random_device reads the kernel's generator here; each call gives 32 bits.
  std::random_device device;
  const auto word = [&device] { return (static_cast<std::uint64_t>(device()) << 32) | device(); };
  const std::uint64_t low = word();
  return token_of(low, word());
}

JobToken job_token_from(std::string_view text) {
  return token_of(detail::Hash(1).combine(text).value(), detail::Hash(2).combine(text).value());
}

std::string to_hex(const JobToken& token) { return fmt::format("{:02x}", fmt::join(token, "")); }

JobToken job_token_from_hex(std::string_view hex) {
  JobToken token{};
  bool good = hex.size() == 2 * token.size();
  for (std::size_t i = 0; good && i < token.size(); ++i) {
    const char* begin = hex.data() + 2 * i;
    const auto [stop, error] = std::from_chars(begin, begin + 2, token[i], 16);
    good = error == std::errc{} && stop == begin + 2;
  }
  if (!good) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a job token is 32 hexadecimal digits; this has {} characters", hex.size()));
  }
  return token;
}

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include "tandem/error.hpp"

#include <string_view>

namespace tandem {
namespace {

// True if `text` contains `word` and neither continues it: "rank 1" is not in "rank 12".
bool mentions(std::string_view text, std::string_view word) {
  const auto continues = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); };
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !continues(text[at - 1])) && (end == text.size() || !continues(text[end]))) return true;
  }
  return false;
}

// An Error made from another's text (a Status that carries what()) must not grow a second prefix or suffix.
std::string compose(ErrorCode code, const std::string& message, int rank, std::int64_t op) {
  const std::string prefix = std::string(to_string(code)) + ": ";
  std::string text = message.starts_with(prefix) ? message : prefix + message;
  std::string where;
  const auto add = [&](const char* what, std::int64_t number) {
    const std::string word = what + std::to_string(number);
    if (number < 0 || mentions(text, word)) return;
    where += (where.empty() ? "" : ", ") + word;
  };
  add("rank ", rank);
  add("op ", op);
  if (!where.empty()) text += " (" + where + ")";
  return text;
}

}  // namespace

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::ok:
      return "ok";
#define TANDEM_ERROR_NAME(name, text) \
  case ErrorCode::name:               \
    return #name;
      TANDEM_ERROR_CODES(TANDEM_ERROR_NAME)
#undef TANDEM_ERROR_NAME
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& message, int rank, std::int64_t op)
    : std::runtime_error(compose(code, message, rank, op)), code_(code), rank_(rank), op_(op) {}

void Status::throw_if_failed() const {
  if (!ok()) throw Error(code, message, rank, op);
}

}  // namespace tandem

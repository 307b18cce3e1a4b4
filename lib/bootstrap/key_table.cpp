// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/key_table.hpp"

#include <fmt/format.h>

#include <charconv>

namespace tandem::detail {

Reply KeyTable::apply(const Request& request) {
  switch (request.op) {
    case Request::Op::set:
      values_.insert_or_assign(request.key, request.value);
      return {};
    case Request::Op::get:
    case Request::Op::try_get:
      return find(request.key);
    case Request::Op::add:
      return {true, {}, add(request.key, request.amount)};
    case Request::Op::erase:
      values_.erase(request.key);
      return {};
  }
  throw Error(ErrorCode::internal, "an unknown store request");
}

Reply KeyTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return {false, {}, 0};
  return {true, found->second, 0};
}

std::int64_t KeyTable::add(const std::string& key, std::int64_t amount) {
  const auto found = values_.find(key);
  std::int64_t value = 0;
  if (found != values_.end()) {
    const std::string& text = found->second;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || stop != text.data() + text.size()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("cannot add to key '{}': it does not hold a number", key));
    }
  }
  if (__builtin_add_overflow(value, amount, &value)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("adding {} to key '{}' overflows", amount, key));
  }
  values_.insert_or_assign(key, std::to_string(value));
  return value;
}

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/request_store.hpp"

namespace tandem::detail {

void View::check() const {
  if (closed()) throw Error(ErrorCode::aborted, "the store was closed");
  if (!open()) throw Error(ErrorCode::invalid_usage, "the store is used after leave()");
}

const char* to_string(Request::Op op) noexcept {
  switch (op) {
    case Request::Op::set:
      return "set";
    case Request::Op::get:
      return "get";
    case Request::Op::try_get:
      return "try_get";
    case Request::Op::add:
      return "add";
    case Request::Op::erase:
      return "erase";
  }
  return "unknown";
}

void RequestStore::set(std::string_view key, std::string_view value, Deadline deadline) {
  request({Request::Op::set, std::string(key), std::string(value)}, deadline, *view_);
}

std::string RequestStore::get(std::string_view key, Deadline deadline) {
  return request({Request::Op::get, std::string(key), {}}, deadline, *view_).value;
}

std::optional<std::string> RequestStore::try_get(std::string_view key, Deadline deadline) {
  Reply reply = request({Request::Op::try_get, std::string(key), {}}, deadline, *view_);
  if (!reply.found) return std::nullopt;
  return std::move(reply.value);
}

std::int64_t RequestStore::add(std::string_view key, std::int64_t amount, Deadline deadline) {
  return request({Request::Op::add, std::string(key), {}, amount}, deadline, *view_).number;
}

void RequestStore::erase(std::string_view key, Deadline deadline) {
  request({Request::Op::erase, std::string(key), {}}, deadline, *view_);
}

}  // namespace tandem::detail

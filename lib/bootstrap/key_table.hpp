// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>

#include "bootstrap/request_store.hpp"

namespace tandem::detail {

/// The keys of a store and what each request does to them. Not thread-safe.
class KeyTable {
 public:
  /// A get of a key that is not set answers found = false, like try_get: waiting is the caller's part.
  /// Throws invalid_argument if an add meets text that is no number, or overflows.
  Reply apply(const Request& request);

 private:
  Reply find(const std::string& key) const;
  std::int64_t add(const std::string& key, std::int64_t amount);

  std::unordered_map<std::string, std::string> values_;
};

}  // namespace tandem::detail

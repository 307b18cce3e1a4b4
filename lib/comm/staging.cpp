// SPDX-License-Identifier: Apache-2.0
#include "comm/staging.hpp"

#include <algorithm>
#include <utility>

#include "device/impl.hpp"

namespace tandem::detail {

void Staging::reserve(std::size_t bytes) {
  if (bytes > capacity_) grow(bytes);
}

std::byte* Staging::take(std::size_t bytes) {
  // In the middle of an operation: there will be room for all of the next one.
  if (blocks_.empty() || bytes > capacity_ - used_) grow(used_ + bytes);
  std::byte* const at = static_cast<std::byte*>(blocks_.back().get()) + used_;
  used_ += bytes;
  return at;
}

void Staging::grow(std::size_t bytes) {
  const std::size_t capacity = std::max(bytes, 2 * capacity_);
  blocks_.push_back(device_.impl().allocate_host(capacity));
  capacity_ = capacity;
}

std::vector<std::shared_ptr<void>> Staging::release() noexcept {
  capacity_ = used_ = 0;
  return std::exchange(blocks_, {});
}

}  // namespace tandem::detail

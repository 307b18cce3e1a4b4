// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tandem/device.hpp"

namespace tandem::detail {

/// Host memory through which one lane's operations pass in one direction, one after the other. Not thread-safe.
///
/// Memory that was outgrown is kept: operations under way use it, and giving page-locked memory back may wait for all
/// of a GPU's work. It at least doubles each time, so that all of it together is no more than as much again.
class Staging {
 public:
  explicit Staging(Device device) : device_(std::move(device)) {}

  /// Makes room for operations of `bytes`, so that take() has nothing to allocate.
  void reserve(std::size_t bytes);
  /// The next operation: what take() gave for the last one may be given again.
  void restart() noexcept { used_ = 0; }
  /// `bytes` in one piece; grows if there is no room. The parts of an operation follow each other without gaps: rows
  /// are multiples of what copies care for, and what reserve() got is enough.
  std::byte* take(std::size_t bytes);
  /// All memory; there is none afterwards.
  std::vector<std::shared_ptr<void>> release() noexcept;

 private:
  void grow(std::size_t bytes);

  Device device_;
  std::vector<std::shared_ptr<void>> blocks_;  // the last is in use
  std::size_t capacity_ = 0;                   // of the last
  std::size_t used_ = 0;
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "tandem/deadline.hpp"

/// How tests take hold of the loopback transport of their process.
namespace tandem::loopback {

/// A matched send and receive whose bytes are about to move.
struct Delivery {
  std::array<std::uint8_t, 16> group;
  int src = 0;
  int dst = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};

/// Runs under the transport's locks: must not block, nor call the transport.
using Matches = std::function<bool(const Delivery&)>;

struct GateState;

/// While it lives and is not released, deliveries that match wait; all others pass (later ones of the same source,
/// destination and tag stay behind a waiting one). Only deliveries that have not begun to move are held.
class Gate {
 public:
  explicit Gate(Matches matches);
  ~Gate();
  Gate(Gate&&) noexcept = default;
  Gate& operator=(Gate&&) = delete;

  /// Lets everything go that it holds, and holds nothing more. May be called again.
  void release();
  /// Deliveries it has held so far, released ones included.
  std::uint64_t held() const;
  /// Blocks until held() >= count: true, or false at the deadline.
  bool wait_held(std::uint64_t count, Deadline deadline) const;

 private:
  std::shared_ptr<GateState> state_;
};

[[nodiscard]] inline Gate hold(Matches matches) { return Gate(std::move(matches)); }

}  // namespace tandem::loopback

// SPDX-License-Identifier: Apache-2.0
#include "transports/loopback/gates.hpp"

#include <condition_variable>
#include <mutex>
#include <vector>

#include "transports/loopback/group.hpp"

namespace tandem::loopback {

struct GateState {
  Matches matches;
  std::uint64_t held = 0;
  bool released = false;
};

namespace {

// All gates of the process. Taken inside a group's lock, never the other way round.
struct Gates {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<GateState>> open;
};

Gates& gates() {
  static Gates all;
  return all;
}

}  // namespace

std::shared_ptr<GateState> hold_at_gate(const Delivery& delivery) {
  const std::lock_guard lock(gates().mutex);
  for (const auto& gate : gates().open) {
    if (!gate->matches(delivery)) continue;
    ++gate->held;
    gates().changed.notify_all();
    return gate;
  }
  return nullptr;
}

bool is_released(const GateState& gate) {
  const std::lock_guard lock(gates().mutex);
  return gate.released;
}

Gate::Gate(Matches matches) : state_(std::make_shared<GateState>()) {
  state_->matches = std::move(matches);
  const std::lock_guard lock(gates().mutex);
  gates().open.push_back(state_);
}

Gate::~Gate() {
  if (state_) release();
}

void Gate::release() {
  {
    const std::lock_guard lock(gates().mutex);
    state_->released = true;
    std::erase(gates().open, state_);
  }
  wake_all_groups();
}

std::uint64_t Gate::held() const {
  const std::lock_guard lock(gates().mutex);
  return state_->held;
}

bool Gate::wait_held(std::uint64_t count, Deadline deadline) const {
  std::unique_lock lock(gates().mutex);
  return gates().changed.wait_until(lock, deadline.time(), [&] { return state_->held >= count; });
}

}  // namespace tandem::loopback

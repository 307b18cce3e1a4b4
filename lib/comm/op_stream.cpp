// SPDX-License-Identifier: Apache-2.0
// What is particular to stream-ordered operations: nothing calls back when something arrives, so somebody has to look.
#include <fmt/format.h>

#include <algorithm>

#include "comm/op.hpp"

namespace tandem::detail {

void OpState::set_stream_op(std::shared_ptr<StreamOp> stream_op) {
  stream_op_ = std::move(stream_op);
  in_flight_ = 1;
}

void OpState::poll() {
  if (!stream_op_ || done()) return;
  stream_op_->poll(*this);
  drop_kept();
}

void OpState::drop_kept() {
  std::vector<std::shared_ptr<void>> kept;
  const std::lock_guard lock(mutex_);
  if (finished_) kept.swap(kept_);
}

void OpState::seen_begin() {
  {
    const std::lock_guard lock(mutex_);
    const std::int64_t now = now_ns();
    for (OpItem& item : items_) {
      if (item.posted || (setup_.kind == OpKind::reduce && !item.receive)) continue;
      item.posted = true;
      item.posted_ns = now;
    }
  }
  if (setup_.kind != OpKind::reduce) start();
}

void OpState::posted(std::size_t i) {
  const std::lock_guard lock(mutex_);
  items_[i].posted = true;
  items_[i].posted_ns = now_ns();
}

void OpState::item_done(std::size_t i) {
  const std::lock_guard lock(mutex_);
  OpItem& item = items_[i];
  if (item.done || finished_) return;
  item.done = true;
  item.done_ns = now_ns();
  --expected_;
  if (item.receive) record_transfer(item);
  finish_if_complete();
}

void OpState::stopped() {
  if (!stream_op_) return;
  {
    const std::lock_guard lock(mutex_);
    in_flight_ = 0;
    finish_if_complete();
  }
  drop_kept();
}

void OpState::leave_to_graph() {
  {
    const std::lock_guard lock(mutex_);
    started_ = finished_ = true;
    all_done_->set();
  }
  drop_kept();
}

bool OpState::watch_until_done(Deadline deadline) {
  if (stream_op_->captured()) {
    throw Error(ErrorCode::invalid_usage,
                fmt::format("{} is part of a graph: synchronize with the stream that runs it", describe()), setup_.rank,
                setup_.sequence);
  }
  while (true) {
    poll();
    const auto next = Deadline::Clock::now() + std::chrono::microseconds(100);
    if (all_done_->wait(Deadline::at(std::min(next, deadline.time())))) return true;
    if (deadline.passed()) return false;
  }
}

}  // namespace tandem::detail

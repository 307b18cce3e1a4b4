// SPDX-License-Identifier: Apache-2.0
#include "comm/stream_op.hpp"

#include <algorithm>
#include <utility>

#include "comm/communicator_impl.hpp"

namespace tandem::detail {

StreamOp::StreamOp(std::weak_ptr<CommunicatorImpl> comm, const Device& device, std::uint32_t lane,
                   std::uint32_t first_flag, const Stream& home)
    : comm_(std::move(comm)),
      device_(device),
      lane_(lane),
      first_flag_(first_flag),
      home_(home.impl().id()),
      capture_(home.impl().capture()) {}

void StreamOp::add_own(std::size_t item) { arrivals_[item]; }

void StreamOp::add_receive(std::size_t item, int peer, std::uint32_t flag, Place place, bool outlives_slot) {
  Arrival& a = arrivals_[item];
  a.remote = true;
  a.peer = peer;
  a.flag = flag;
  a.place = std::move(place);
  a.outlives_slot = outlives_slot;
  awaited_.emplace_back(item, &a);
}

void StreamOp::add_send(std::size_t item, int peer) { sends_[peer].push_back(item); }

void StreamOp::all_posted(int peer) {
  const std::lock_guard lock(poll_mutex_);
  unsent_.push_back(peer);
}

void StreamOp::begun(const Stream& home) {
  const std::scoped_lock lock(mutex_, poll_mutex_);
  begun_ = device_.create_event();
  home.record(begun_);
  is_begun_ = true;
  if (!captured()) begin_mark_ = home.impl().leave_mark();
}

void StreamOp::follow(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  wait_event(stream, begun_, home_);
}

void StreamOp::finishing(const Stream& stream) {
  const std::scoped_lock lock(mutex_, poll_mutex_);
  if (!captured()) start_mark_ = stream.impl().leave_mark();
}

void StreamOp::finished(const Stream& stream) {
  const std::scoped_lock lock(mutex_, poll_mutex_);
  finished_ = device_.create_event();
  stream.record(finished_);
  finished_on_ = stream.impl().id();
  is_finished_ = true;
  if (!captured()) finish_mark_ = stream.impl().leave_mark();
}

void StreamOp::set_successor(std::shared_ptr<const MarkImpl> begun) {
  const std::lock_guard lock(poll_mutex_);
  successor_ = std::move(begun);
}

void StreamOp::wait_event(const Stream& stream, const Event& event, std::uint64_t recorded_on) const {
  if (stream.impl().id() != recorded_on && stream.impl().capture() == capture_) stream.wait(event);
}

void StreamOp::wait_flag(const Stream& stream, Arrival& a, const OnWait& on_wait) {
  const bool at_home = stream.impl().id() == home_;
  if (at_home && a.at_home) return;
  const auto comm = comm_.lock();
  if (!comm) return;  // it has failed or finished what was open: there is nothing to wait for
  // Ahead of the beginning the flag may still be up from the lane's operation before.
  if (is_begun_) wait_event(stream, begun_, home_);
  comm->with_endpoint([&](Endpoint& endpoint) {
    const bool traced = on_wait && !captured();
    struct Begin {
      std::int64_t ns = 0;
      bool stalled = false;
    };
    const auto begin = traced ? std::make_shared<Begin>() : nullptr;
    if (traced) {
      stream.run([begin, weak = comm_, peer = a.peer, flag = a.flag] {
        begin->ns = now_ns();
        const auto c = weak.lock();
        if (c) c->with_endpoint([&](Endpoint& e) { begin->stalled = !e.arrived(peer, flag); });
      });
    }
    endpoint.wait(stream, a.peer, a.flag);
    if (traced) stream.run([begin, on_wait] { on_wait(begin->ns, begin->stalled ? now_ns() : begin->ns); });
  });
  if (at_home) a.at_home = true;
}

void StreamOp::place_on(const Stream& stream, Arrival& a) {
  a.place(stream);
  a.placed = true;
  a.placed_on = stream.impl().id();
  a.placed_event = device_.create_event();
  stream.record(a.placed_event);
}

void StreamOp::wait(const Stream& stream, std::size_t item, const OnWait& on_wait) {
  const std::lock_guard lock(mutex_);
  const auto it = arrivals_.find(item);
  if (it == arrivals_.end()) return;
  Arrival& a = it->second;
  if (is_superseded_) {
    wait_event(stream, superseded_, superseded_on_);
  } else if (!a.remote) {
    if (is_begun_) wait_event(stream, begun_, home_);
  } else if (a.placed) {
    wait_event(stream, a.placed_event, a.placed_on);
  } else {
    wait_flag(stream, a, on_wait);
    if (a.place) place_on(stream, a);
  }
}

void StreamOp::check_finished() {
  const std::lock_guard lock(mutex_);
  if (expects_finish_ && !is_finished_) {
    throw Error(ErrorCode::invalid_usage, "a stream cannot wait for a reduction that has not been finished");
  }
}

void StreamOp::wait_rest(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (is_begun_) wait_event(stream, begun_, home_);
  if (is_finished_) wait_event(stream, finished_, finished_on_);
  if (!has_sends()) return;
  if (const auto comm = comm_.lock()) comm->with_endpoint([&](Endpoint& endpoint) { endpoint.wait_sent(stream); });
  rest_at_home_ = rest_at_home_ || stream.impl().id() == home_;
}

void StreamOp::check_capture(const Stream& stream, bool done) const {
  const std::uint64_t capture = stream.impl().capture();
  if (capture == 0 || capture == capture_ || captured() || done) return;
  throw Error(
      ErrorCode::invalid_usage,
      "an operation that is under way outside of a graph is waited for while the graph is captured: synchronize "
      "with it first");
}

void StreamOp::supersede(const Stream& next) {
  const std::lock_guard lock(mutex_);
  const bool apart = next.impl().capture() != capture_;
  if (is_begun_) wait_event(next, begun_, home_);
  for (auto& [item, a] : arrivals_) {
    if (!a.remote) continue;
    if (a.placed) {
      wait_event(next, a.placed_event, a.placed_on);
      continue;
    }
    if (a.at_home && next.impl().id() == home_) continue;
    wait_flag(next, a, {});
    if (a.place && a.outlives_slot) place_on(next, a);
  }
  if (is_finished_) wait_event(next, finished_, finished_on_);
  if (has_sends() && !apart && !(rest_at_home_ && next.impl().id() == home_)) {
    if (const auto comm = comm_.lock()) comm->with_endpoint([&](Endpoint& endpoint) { endpoint.wait_sent(next); });
  }
  superseded_ = device_.create_event();
  next.record(superseded_);
  superseded_on_ = next.impl().id();
  is_superseded_ = true;
  for (auto& [item, a] : arrivals_) a.place = nullptr;
}

void StreamOp::place_rest(Deadline deadline) {
  Stream side;
  std::vector<Event> placed;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [item, a] : arrivals_) {
      if (a.place && !a.placed && !is_superseded_) {
        if (!side.valid()) side = device_.create_stream({.name = "place"});
        wait_flag(side, a, {});  // it is up, but the wait may be what brings the rows from where they have arrived
        place_on(side, a);
      }
      if (a.placed) placed.push_back(a.placed_event);
    }
  }
  for (const Event& event : placed) event.synchronize(deadline);
}

void StreamOp::drop() {
  const std::lock_guard lock(mutex_);
  for (auto& [item, a] : arrivals_) a.place = nullptr;
}

void StreamOp::poll(OpState& op) {
  const std::unique_lock lock(poll_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || captured()) return;  // another thread is at it
  if (!seen_begin_) {
    if (!begin_mark_ || !begin_mark_->reached()) return;
    seen_begin_ = true;
    op.seen_begin();
    for (const auto& [item, a] : arrivals_) {
      if (!a.remote) op.item_done(item);
    }
  }
  if (!seen_start_ && start_mark_ && start_mark_->reached()) {
    seen_start_ = true;
    op.start();
  }
  // Looked at first: flags that were not up when the successor had not begun may be its own by now, but once it has
  // begun all of this one is over.
  const bool over = successor_ && successor_->reached();
  const auto look = [&](const Endpoint* endpoint) {
    std::erase_if(awaited_, [&](const auto& awaited) {
      const auto& [item, a] = awaited;
      if (!over && !(endpoint != nullptr && endpoint->arrived(a->peer, a->flag))) return false;
      op.item_done(item);
      return true;
    });
    std::erase_if(unsent_, [&](int peer) {
      if (!over && !(endpoint != nullptr && endpoint->sent(peer, lane_))) return false;
      for (const std::size_t item : sends_[peer]) op.item_done(item);
      return true;
    });
  };
  const auto comm = comm_.lock();
  if (!comm || !comm->with_endpoint([&](const Endpoint& endpoint) { look(&endpoint); })) look(nullptr);
  if (!seen_finish_ && finish_mark_ && finish_mark_->reached()) {
    seen_finish_ = true;
    op.task_done();
  }
}

}  // namespace tandem::detail

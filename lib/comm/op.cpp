// SPDX-License-Identifier: Apache-2.0
#include "comm/op.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/text.hpp"

namespace tandem::detail {

const char* to_string(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::gather:
      return "gather";
    case OpKind::reduce:
      return "reduce";
    case OpKind::exchange:
      return "exchange";
    case OpKind::clock:
      return "clock";
  }
  return "?";
}

OpState::OpState(Setup setup) : setup_(std::move(setup)), all_done_(setup_.device->create_signal()) {}

std::string OpState::describe() const { return fmt::format("{} (op {})", to_string(setup_.kind), setup_.sequence); }

std::size_t OpState::add_item(OpItem item) {
  if (item.receive && !stream_op_) item.arrived = setup_.device->create_signal();
  items_.push_back(std::move(item));
  ++expected_;
  return items_.size() - 1;
}

void OpState::seal() {
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].receive) by_chunk_[{items_[i].field, items_[i].chunk}].push_back(i);
  }
}

void OpState::discard() {
  std::vector<std::shared_ptr<void>> kept;
  const std::lock_guard lock(mutex_);
  kept.swap(kept_);
}

bool OpState::start() {
  std::unique_lock lock(mutex_);
  if (started_) return status_.ok();
  started_ = true;
  started_at_ = Deadline::Clock::now();
  const bool ok = status_.ok();
  finish_if_complete();
  return ok;
}

bool OpState::begin_items(std::span<const std::pair<std::size_t, std::size_t>> transfers) {
  const std::lock_guard lock(mutex_);
  if (!status_.ok()) return false;
  const std::int64_t now = now_ns();
  for (const auto& [i, count] : transfers) {
    OpItem& item = items_[i];
    item.posted = true;
    item.posted_ns = now;
    item.pending += count;
    in_flight_ += count;
  }
  return true;
}

void OpState::transfer_done(std::size_t i, const Status& status) {
  std::unique_lock lock(mutex_);
  OpItem& item = items_[i];
  --item.pending;
  if (!status.ok()) {
    item.broken = true;
    --in_flight_;
    const bool news = status_.ok();
    finish_if_complete();
    lock.unlock();
    // What it means for the group is for the communicator to say: a broken connection is often the echo of another
    // rank's death, which the store is about to report.
    if (news) setup_.on_error(status);
    return;
  }
  if (item.pending == 0 && !item.broken && status_.ok()) {
    // The item is complete and nobody else touches it: place its rows without holding up the other items' completions.
    // in_flight_ still counts it, so that its memory stays in use.
    if (item.on_arrival) {
      lock.unlock();
      item.on_arrival();
      lock.lock();
    }
    item.done = true;
    item.done_ns = now_ns();
    --expected_;
    if (item.receive) {
      record_transfer(item);
      item.arrived->set();
    }
  }
  --in_flight_;
  finish_if_complete();
}

void OpState::local_done(std::size_t i) {
  std::unique_lock lock(mutex_);
  OpItem& item = items_[i];
  item.posted = item.done = true;
  item.posted_ns = item.done_ns = now_ns();
  --expected_;
  if (item.arrived) item.arrived->set();
  finish_if_complete();
}

void OpState::task_done() {
  std::unique_lock lock(mutex_);
  --expected_;
  finish_if_complete();
}

bool OpState::fail(const Status& status) {
  std::unique_lock lock(mutex_);
  if (finished_) return false;
  const bool first = status_.ok();
  if (first) {
    status_ = status;
    if (status_.op < 0) status_.op = setup_.sequence;
  }
  finish_if_complete();
  return first;
}

void OpState::finish_if_complete() {
  if (finished_) return;
  const bool complete = status_.ok() ? started_ && expected_ == 0 : in_flight_ == 0;
  if (!complete) return;
  finished_ = true;
  for (OpItem& item : items_) {
    if (item.arrived) item.arrived->set();
  }
  all_done_->set();
  if (!stream_op_) kept_.clear();  // see drop_kept()
}

void OpState::record_transfer(const OpItem& item) const {
  if (!setup_.trace || item.peer == setup_.rank) return;
  Span span;
  span.kind = SpanKind::transfer;
  span.name =
      fmt::format("{}/{}/{}", to_string(setup_.kind), setup_.fields[static_cast<std::size_t>(item.field)], item.chunk);
  span.track = fmt::format("from rank {}", item.peer);
  span.begin_ns = item.posted_ns;
  span.end_ns = item.done_ns;
  span.bytes = item.bytes;
  span.path = path(item.peer);
  setup_.trace->add(std::move(span));
}

bool OpState::done() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

Status OpState::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool OpState::started() const {
  const std::lock_guard lock(mutex_);
  return started_ && !finished_;
}

bool OpState::timed_out(Deadline::Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return started_ && !finished_ && status_.ok() && now >= started_at_ + setup_.timeout;
}

std::chrono::nanoseconds OpState::running_for() const {
  const std::lock_guard lock(mutex_);
  return started_ ? Deadline::Clock::now() - started_at_ : std::chrono::nanoseconds{0};
}

void OpState::throw_if_failed() const { status().throw_if_failed(); }

int OpState::field_index(std::string_view field) const {
  const auto it = std::find(setup_.fields.begin(), setup_.fields.end(), field);
  if (it == setup_.fields.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has no field '{}'; it has {}", describe(), field, fmt::join(setup_.fields, ", ")),
                setup_.rank);
  }
  return static_cast<int>(it - setup_.fields.begin());
}

void OpState::wait_item(const Stream& stream, std::size_t i) {
  const OpItem& item = items_[i];
  std::function<void(std::int64_t, std::int64_t)> on_wait;
  if (setup_.trace && item.peer != setup_.rank) {
    on_wait = [trace = setup_.trace,
               name = fmt::format("wait/{}/{}", setup_.fields[static_cast<std::size_t>(item.field)], item.chunk),
               track = stream.name()](std::int64_t begin, std::int64_t end) {
      trace->add({SpanKind::wait, name, track, begin, end, 0, ""});
    };
  }
  if (stream_op_) {
    stream_op_->check_capture(stream, done());
    wait_in_order([&] { stream_op_->wait(stream, i, on_wait); });
  } else {
    stream.impl().wait(item.arrived, std::move(on_wait));
  }
}

void OpState::wait(const Stream& stream) {
  throw_if_failed();
  if (stream_op_) stream_op_->check_finished();
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].receive) wait_item(stream, i);
  }
  if (stream_op_) {
    wait_in_order([&] { stream_op_->wait_rest(stream); });
  } else {
    stream.impl().wait(all_done_, {});
  }
}

void OpState::wait(const Stream& stream, std::string_view field) {
  throw_if_failed();
  const int index = field_index(field);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].receive && items_[i].field == index) wait_item(stream, i);
  }
}

void OpState::wait(const Stream& stream, std::string_view field, ChunkId chunk) {
  throw_if_failed();
  const auto it = by_chunk_.find({field_index(field), chunk});
  if (it == by_chunk_.end()) {
    if (chunk >= 0) return;
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has no chunk {}", describe(), chunk), setup_.rank);
  }
  for (const std::size_t i : it->second) wait_item(stream, i);
}

void OpState::synchronize(Deadline deadline) {
  if (!(stream_op_ ? watch_until_done(deadline) : all_done_->wait(deadline))) {
    throw_if_failed();
    throw Error(ErrorCode::timeout,
                fmt::format("{} is not done yet{}", describe(),
                            started() ? ": missing " + missing() : ": its stream has not reached it"),
                setup_.rank, setup_.sequence);
  }
  throw_if_failed();
  if (stream_op_) stream_op_->place_rest(deadline);
}

std::vector<int> OpState::missing_ranks() const {
  const std::lock_guard lock(mutex_);
  std::set<int> ranks;
  for (const OpItem& item : items_) {
    if (!item.done && item.posted && item.peer != setup_.rank) ranks.insert(item.peer);
  }
  return {ranks.begin(), ranks.end()};
}

namespace {

// "3-7, 9" of ascending numbers.
std::string ranges(const std::set<ChunkId>& ids) {
  std::string out;
  for (auto it = ids.begin(); it != ids.end();) {
    const ChunkId first = *it;
    ChunkId last = first;
    while (++it != ids.end() && *it == last + 1) last = *it;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", first);
    if (last > first) out += fmt::format("-{}", last);
  }
  return out;
}

}  // namespace

std::string OpState::missing() const {
  const std::lock_guard lock(mutex_);
  std::map<std::pair<int, int>, std::set<ChunkId>> receives;  // (peer, field)
  std::map<int, int> sends;
  for (const OpItem& item : items_) {
    if (item.done || !item.posted || item.peer == setup_.rank) continue;
    if (item.receive) {
      receives[{item.peer, item.field}].insert(item.chunk);
    } else {
      ++sends[item.peer];
    }
  }
  std::string out;
  for (const auto& [key, chunks] : receives) {
    out += fmt::format("{}{} chunk{} {} from rank {}", out.empty() ? "" : "; ",
                       setup_.fields[static_cast<std::size_t>(key.second)], chunks.size() == 1 ? "" : "s",
                       ranges(chunks), key.first);
  }
  for (const auto& [peer, count] : sends) {
    out += fmt::format("{}{} send{} that rank {} did not take", out.empty() ? "" : "; ", count, count == 1 ? "" : "s",
                       peer);
  }
  return out.empty() ? "nothing from other ranks" : out;
}

Status OpState::timeout_status() const {
  const std::vector<int> ranks = missing_ranks();
  Status status;
  status.code = ErrorCode::timeout;
  status.rank = ranks.empty() ? setup_.rank : ranks.front();
  status.op = setup_.sequence;
  status.message = fmt::format("{} on rank {} did not finish within {}: missing {}", describe(), setup_.rank,
                               format_duration(setup_.timeout), missing());
  return status;
}

std::vector<std::string> OpState::paths() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (const OpItem& item : items_) {
    if (item.done && item.peer != setup_.rank && item.bytes > 0) names.insert(path(item.peer));
  }
  return {names.begin(), names.end()};
}

std::vector<ChunkTiming> OpState::chunk_timings() const {
  const std::lock_guard lock(mutex_);
  std::vector<ChunkTiming> out;
  for (const OpItem& item : items_) {
    if (!item.receive) continue;
    out.push_back({setup_.fields[static_cast<std::size_t>(item.field)], item.chunk, item.peer, item.bytes,
                   item.posted_ns, item.done_ns, item.peer == setup_.rank ? "local" : path(item.peer)});
  }
  return out;
}

std::uint64_t OpState::bytes(bool received) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const OpItem& item : items_) {
    if (item.done && item.receive == received && item.peer != setup_.rank) sum += item.bytes;
  }
  return sum;
}

Tensor OpState::landed(std::string_view field) const {
  const auto index = static_cast<std::size_t>(field_index(field));
  if (index >= landed_.size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} lands no rows", describe()), setup_.rank);
  }
  return landed_[index];
}

}  // namespace tandem::detail

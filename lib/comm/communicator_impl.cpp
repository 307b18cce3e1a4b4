// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator_impl.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/reduce.hpp"

namespace tandem::detail {

CommunicatorImpl::CommunicatorImpl(CommunicatorOptions options, Group group, std::shared_ptr<Store> job_store,
                                   std::string route_reason)
    : options_(std::move(options)),
      group_(std::move(group)),
      streamed_(group_.size() == 1 && options_.device.kind() == DeviceKind::cuda),
      job_store_(std::move(job_store)),
      route_reason_(std::move(route_reason)) {
  left_.resize(static_cast<std::size_t>(size()), false);
  routes_.resize(static_cast<std::size_t>(size()));
  if (job_store_) store_ = prefix_store(job_store_, group_.name);
}

CommunicatorImpl::~CommunicatorImpl() { close(); }

void CommunicatorImpl::close() noexcept {
  bool open = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    open = status_.ok();
  }
  wake_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  if (open && !finalized_) {
    Status status;
    status.code = ErrorCode::aborted;
    status.message = "the communicator was destroyed";
    status.rank = rank();
    fail(std::move(status), true);
  }
  // Handles that are still around keep landed rows, and those of a one-sided transport their endpoint: it closes with
  // the last of them, but does nothing any more.
  for (auto* slots : {&gather_last_, &reduce_last_}) {
    for (Slot& slot : *slots) {
      if (slot.last && slot.last->stream_op()) slot.last->stream_op()->drop();
      slot = {};
    }
  }
  for (auto& last : exchange_last_) last.reset();
  prepared_.clear();
  gather_arena_ = {};
  reduce_arena_ = {};
  dense_.clear();
  std::shared_ptr<Endpoint> endpoint;
  {
    const std::unique_lock lock(endpoint_mutex_);
    endpoint.swap(endpoint_);
  }
  if (endpoint && endpoint.use_count() > 1) endpoint->abort("the communicator is closed");
  endpoint.reset();  // completes what is pending
  listening_.reset();
}

Status CommunicatorImpl::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void CommunicatorImpl::check_usable() const {
  status().throw_if_failed();
  if (finalized_) throw Error(ErrorCode::invalid_usage, "the communicator is finalized", rank());
}

void CommunicatorImpl::fail(Status status, bool announce) noexcept {
  try {
    std::vector<std::shared_ptr<OpState>> ops;
    {
      const std::lock_guard lock(mutex_);
      if (!status_.ok()) return;
      status_ = status;
      ops = open_ops_;
    }
    // Operations first: what the transport reports when it aborts must not become their error.
    for (const auto& op : ops) op->fail(status);
    {
      const std::shared_lock lock(endpoint_mutex_);
      if (endpoint_) endpoint_->abort(status.message);
    }
    for (const auto& op : ops) op->stopped();
    if (announce && job_store_) {
      const bool peer_died = status.code == ErrorCode::peer_failed && status.rank >= 0 && status.rank < size();
      const int named = peer_died ? status.rank : rank();
      job_store_->announce({peer_died ? Store::Notice::Kind::peer_lost : Store::Notice::Kind::aborted,
                            group_.job_ranks[static_cast<std::size_t>(named)], group_.name + '\n' + status.message});
    }
    if (store_) store_->close();
    log::info("communicator failed: {}", status.message);
  } catch (const std::exception& e) {
    log::error("while failing the communicator: {}", e.what());
  }
}

void CommunicatorImpl::abort(const std::string& reason) noexcept {
  Status status;
  status.code = ErrorCode::aborted;
  status.rank = rank();
  status.message = fmt::format("rank {} aborted: {}", rank(), reason);
  fail(std::move(status), true);
}

void CommunicatorImpl::report(Status status, bool announce) {
  {
    const std::lock_guard lock(mutex_);
    if (!report_ && status_.ok()) report_ = Report{std::move(status), announce};
  }
  wake_.notify_all();
}

int CommunicatorImpl::group_rank_of(int job_rank) const {
  const auto it = std::find(group_.job_ranks.begin(), group_.job_ranks.end(), job_rank);
  return it == group_.job_ranks.end() ? -1 : static_cast<int>(it - group_.job_ranks.begin());
}

void CommunicatorImpl::on_notice(const Store::Notice& notice) {
  using Kind = Store::Notice::Kind;
  const int who = group_rank_of(notice.rank);
  if (quiet_.load() || who == rank()) return;
  // Notices of communicators carry their group's name in front; those of the store itself do not.
  const std::size_t line = notice.reason.find('\n');
  const std::string reason = line == std::string::npos ? notice.reason : notice.reason.substr(line + 1);
  if (notice.kind == Kind::left) {
    const std::lock_guard lock(mutex_);
    if (who >= 0) left_[static_cast<std::size_t>(who)] = true;
    return;
  }
  Status status;
  status.rank = who;
  if (notice.kind == Kind::peer_lost) {
    if (who < 0 && notice.rank >= 0) return;  // of another group
    status.code = ErrorCode::peer_failed;
    status.message = who < 0 ? reason : fmt::format("rank {} was lost: {}", who, reason);
  } else {
    if (who < 0 || notice.reason.substr(0, line) != group_.name) return;
    status.code = ErrorCode::aborted;
    status.message = fmt::format("rank {} gave up: {}", who, reason);
  }
  report(std::move(status), false);
}

void CommunicatorImpl::suspect(int peer, const std::string& reason) {
  if (quiet_.load()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!suspicion_) suspicion_ = Suspicion{peer, reason, Deadline::Clock::now()};
  }
  wake_.notify_all();
}

void CommunicatorImpl::on_transfer_error(const Status& status) {
  if (status.code == ErrorCode::peer_failed) {
    suspect(status.rank, status.message);
  } else {
    Status mine = status;
    mine.message = fmt::format("transfer with rank {}: {}", status.rank, status.message);
    report(std::move(mine), true);
  }
}

std::string CommunicatorImpl::route(int peer) const {
  if (peer < 0 || peer >= size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("rank {} of {}", peer, size()), rank());
  }
  if (peer == rank()) return "local: the rank itself";
  const RouteName& route = routes_[static_cast<std::size_t>(peer)];
  return fmt::format("{}: {}", route.transport, route.reason);
}

std::string CommunicatorImpl::transports() const {
  std::set<std::string> names;
  for (const RouteName& route : routes_) {
    if (!route.transport.empty()) names.insert(route.transport);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::shared_ptr<OpState> CommunicatorImpl::make_op(OpKind kind, std::vector<std::string> fields) {
  OpState::Setup setup;
  setup.kind = kind;
  setup.sequence = next_sequence_++;
  setup.rank = rank();
  setup.fields = std::move(fields);
  for (const RouteName& route : routes_) setup.paths.push_back(route.transport);
  setup.timeout = options_.operation_timeout;
  setup.device = options_.device.handle();
  setup.trace = options_.trace;
  setup.on_error = [self = weak_from_this()](const Status& status) {
    if (const auto impl = self.lock()) impl->on_transfer_error(status);
  };
  return std::make_shared<OpState>(std::move(setup));
}

std::shared_ptr<StreamOp> CommunicatorImpl::make_stream_op(std::uint32_t lane, const Stream& home) {
  if (home.impl().capture() != 0 && endpoint_ && !endpoint_->traits().captures) {
    throw Error(ErrorCode::unsupported,
                fmt::format("transport {} cannot be part of a graph: the host moves its bytes", transports()), rank());
  }
  return std::make_shared<StreamOp>(weak_from_this(), options_.device, lane, lane * flags_of_a_lane(), home);
}

StreamOp::Place CommunicatorImpl::placing(int peer) const {
  // wait() itself does it, but then it is for one stream to wait.
  if (endpoint_ && endpoint_->places_on_wait(peer)) return [](const Stream&) {};
  return {};
}

std::uint32_t CommunicatorImpl::flags_of_a_lane() const {
  return endpoint_ ? endpoint_->traits().flag_limit / StreamLayout::lanes : 0;
}

void CommunicatorImpl::open_op(const std::shared_ptr<OpState>& op) {
  op->seal();
  std::vector<std::shared_ptr<OpState>> ops;
  Status failed;  // a moment ago it had not
  {
    const std::lock_guard lock(mutex_);
    failed = status_;
    if (failed.ok()) {
      ops = open_ops_;
      open_ops_.push_back(op);
      look_closely_ = op->stream_op() != nullptr;
    }
  }
  if (!failed.ok()) {
    op->discard();
    failed.throw_if_failed();
  }
  for (const auto& o : ops) o->poll();
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(open_ops_, [](const auto& o) { return o->done(); });
  }
  if (op->stream_op()) wake_.notify_all();
}

void* CommunicatorImpl::dense_memory(std::size_t slot, std::size_t field, std::size_t bytes) {
  std::vector<Buffer>& buffers = dense_[{slot, field}];
  if (buffers.empty() || buffers.back().bytes() < bytes) buffers.push_back(options_.device.allocate(bytes));
  return buffers.back().data();
}

void CommunicatorImpl::post(const std::shared_ptr<OpState>& op, std::span<const WireTransfer> transfers,
                            std::vector<std::size_t> items) {
  if (transfers.empty()) return;
  std::vector<std::pair<std::size_t, std::size_t>> counts;  // item, its transfers: items come in runs
  for (const std::size_t i : items) {
    if (counts.empty() || counts.back().first != i) counts.emplace_back(i, 0);
    ++counts.back().second;
  }
  if (!op->begin_items(counts)) return;
  Status status;
  try {
    const std::shared_lock lock(endpoint_mutex_);
    if (endpoint_) {
      endpoint_->post(transfers, [op, items](std::size_t i, const Status& s) { op->transfer_done(items[i], s); });
      return;
    }
    status.code = ErrorCode::aborted;
    status.message = "the communicator is closed";
  } catch (const Error& e) {
    status.code = e.code();
    status.message = e.what();
  }
  status.rank = transfers.front().peer;
  for (const std::size_t i : items) op->transfer_done(i, status);
}

void CommunicatorImpl::barrier(Deadline deadline) {
  check_usable();
  if (size() == 1) return;
  const std::string name = fmt::format("barrier {}", next_meeting_++);
  meet([&] { meeting_->barrier(name, deadline); });
}

void CommunicatorImpl::finalize(Deadline deadline) {
  check_usable();
  std::vector<std::shared_ptr<OpState>> ops;
  {
    const std::lock_guard lock(mutex_);
    ops = open_ops_;
  }
  for (const auto& op : ops) {
    // What graphs do is known to who launches them alone.
    if (!(op->stream_op() && op->stream_op()->captured())) op->synchronize(deadline);
  }
  if (size() > 1) {
    const std::string name = fmt::format("finalize {}", next_meeting_++);
    meet([&] { meeting_->barrier(name, deadline); });
    quiet_ = true;
  }
  finalized_ = true;
  close();
  if (job_store_ && group_.name.empty()) job_store_->leave(deadline);
}

}  // namespace tandem::detail

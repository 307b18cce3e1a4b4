// SPDX-License-Identifier: Apache-2.0
#include "comm/staged_endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"

namespace tandem::detail {

namespace {

// Queues of the watcher: one for what is sent, then one for the beginnings on each lane.
constexpr std::uint32_t sends_queue = 0;
constexpr std::uint32_t first_lane_queue = 1;

}  // namespace

StagedEndpoint::StagedEndpoint(std::shared_ptr<Endpoint> transport, Device device, TransferFailed failed)
    : device_(std::move(device)),
      failed_(std::move(failed)),
      transport_(std::move(transport)),
      out_(device_.create_stream({.name = "staging"})),
      readers_(device_.create_stream({.name = "staging readers"})),
      source_ready_(device_.create_event()),
      copied_out_(device_.create_event()),
      read_(device_.create_event()),
      lanes_(lane_limit, Lane(device_)) {}

StagedEndpoint::~StagedEndpoint() {
  watcher_.stop();
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  transport_.reset();  // completes what is pending, and writes to staging no more
  for (Lane& l : lanes_) {
    for (const auto& operation : l.operations) operation->release();
  }
  leave_memory();
}

// Streams may still copy from staging, and out of what is sent: its memory goes when they have.
void StagedEndpoint::leave_memory() noexcept {
  std::vector<std::shared_ptr<void>> memory;
  try {
    for (Lane& l : lanes_) {
      for (Staging* staging : {&l.received, &l.sent}) {
        for (auto& block : staging->release()) memory.push_back(std::move(block));
      }
    }
    if (memory.empty() || (out_.idle() && readers_.idle())) return;
    readers_.wait(copied_out_);
    readers_.run([memory] {});
  } catch (const std::exception& e) {
    log::warn("staging memory is given up: {}", e.what());
    for (auto& block : memory) static_cast<void>(new std::shared_ptr<void>(std::move(block)));
  }
}

Traits StagedEndpoint::traits() const noexcept { return {true, false, false, flag_limit, lane_limit}; }

std::string StagedEndpoint::name(int peer) const { return name_of(transport_->name(peer)); }

StagedEndpoint::Lane& StagedEndpoint::lane(std::uint32_t number) {
  if (number < lane_limit) return lanes_[number];
  throw Error(ErrorCode::invalid_argument, fmt::format("lane {} of {}", number, lane_limit));
}

void StagedEndpoint::reserve(std::uint32_t lane_number, std::size_t received, std::size_t sent) {
  lane(lane_number).received.reserve(received);
  lane(lane_number).sent.reserve(sent);
}

void StagedEndpoint::throw_if_aborted() const {
  if (aborted_) throw Error(ErrorCode::aborted, abort_reason_);
}

void StagedEndpoint::post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) {
  if (use.begin) {
    begin(stream, transfers, use.lane);
  } else if (!transfers.empty()) {
    send(stream, transfers, use);
  }
}

void StagedEndpoint::begin(const Stream& stream, std::span<const WireTransfer> transfers, std::uint32_t lane_number) {
  Lane& l = lane(lane_number);
  std::shared_ptr<SignalImpl> sent_before;
  if (const auto previous = last_operation(lane_number)) sent_before = previous->close();
  const auto operation = std::make_shared<StagedOperation>(device_.impl(), std::move(sent_before));
  l.received.restart();
  l.sent.restart();
  std::vector<Bundle> bundles = make_bundles(transfers);
  std::vector<std::shared_ptr<StagedReceive>> receives;
  std::byte* at = bundles.empty() ? nullptr : l.received.take(bytes_of(bundles));
  for (Bundle& bundle : bundles) {
    const std::size_t bytes = bundle.bytes;
    receives.push_back(std::make_shared<StagedReceive>(device_.impl(), std::move(bundle), at));
    operation->add_receive(receives.back());
    at += bytes;
  }
  const std::shared_ptr<const MarkImpl> begun = stream.impl().leave_mark();
  operation->set_begun(begun);
  {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    begun_operation(l);  // forgets those that are over
    l.operations.push_back(operation);
  }
  if (receives.empty()) return;
  watcher_.watch(first_lane_queue + lane_number, begun,
                 [this, operation, receives = std::move(receives)] { post_receives(operation, receives); });
}

void StagedEndpoint::send(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) {
  const std::vector<Bundle> bundles = make_bundles(transfers);
  const std::shared_ptr<StagedOperation> operation = last_operation(use.lane);
  if (!operation) throw Error(ErrorCode::invalid_usage, fmt::format("sends on lane {} without a beginning", use.lane));
  std::byte* at = lane(use.lane).sent.take(bytes_of(bundles));
  for (const Bundle& bundle : bundles) operation->expect_sends(bundle.peer, bundle.pieces(), use.last);
  stream.record(source_ready_);
  out_.wait(source_ready_);
  if (operation->sent_before()) out_.impl().wait(operation->sent_before(), {});
  std::vector<WireTransfer> ready;  // copied, but for the mark
  std::size_t ready_bytes = 0;
  const auto leave = [&] {
    watcher_.watch(sends_queue, out_.impl().leave_mark(),
                   [this, operation, pieces = std::exchange(ready, {})] { post_sends(operation, pieces); });
    ready_bytes = 0;
  };
  for (const Bundle& bundle : bundles) {
    for (std::size_t piece = 0; piece < bundle.pieces(); ++piece) {
      bundle.for_each_part(piece, [&](const std::byte* data, std::size_t offset, std::size_t bytes) {
        copy(out_, at + offset, data, bytes);
      });
      const std::size_t bytes = bundle.bytes_of(piece);
      ready.push_back({bundle.peer, false, at + piece * Bundle::piece_bytes, bytes, bundle.tag});
      ready_bytes += bytes;
      if (ready_bytes >= Bundle::piece_bytes) leave();
    }
    at += bundle.bytes;
  }
  if (!ready.empty()) leave();
  out_.record(copied_out_);
}

void StagedEndpoint::post_receives(const std::shared_ptr<StagedOperation>& operation,
                                   const std::vector<std::shared_ptr<StagedReceive>>& receives) {
  std::vector<WireTransfer> transfers;
  std::vector<std::pair<std::shared_ptr<StagedReceive>, std::size_t>> pieces;
  for (const auto& receive : receives) {
    const Bundle& bundle = receive->bundle;
    for (std::size_t piece = 0; piece < bundle.pieces(); ++piece) {
      transfers.push_back(
          {bundle.peer, true, receive->staging + piece * Bundle::piece_bytes, bundle.bytes_of(piece), bundle.tag});
      pieces.emplace_back(receive, piece);
    }
  }
  start(transfers, [this, operation, pieces = std::move(pieces)](std::size_t i, const Status& status) {
    const auto& [receive, piece] = pieces[i];
    if (status.ok()) {
      receive->piece_arrived(piece);
    } else {
      report(status);
    }
  });
}

void StagedEndpoint::post_sends(const std::shared_ptr<StagedOperation>& operation, std::vector<WireTransfer> pieces) {
  std::vector<int> peers;
  for (const WireTransfer& t : pieces) peers.push_back(t.peer);
  start(pieces, [this, operation, peers = std::move(peers)](std::size_t i, const Status& status) {
    if (status.ok()) {
      operation->piece_sent(peers[i]);
    } else {
      report(status);
    }
  });
}

void StagedEndpoint::start(std::span<const WireTransfer> transfers, Completion done) {
  try {
    transport_->post(transfers, std::move(done));
  } catch (const Error& e) {
    report({e.code(), e.what(), transfers.front().peer});
  }
}

void StagedEndpoint::report(const Status& status) const {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
  }
  failed_(status);
}

void StagedEndpoint::copy(const Stream& stream, void* destination, const void* source, std::size_t bytes) const {
  if (device_.kind() != DeviceKind::host) {
    stream.copy(destination, source, bytes);
    return;
  }
  stream.run([copies = host_copies_, destination, source, bytes] {
    const std::shared_lock lock(copies->mutex);
    if (!copies->stopped) std::memcpy(destination, source, bytes);
  });
}

std::shared_ptr<StagedOperation> StagedEndpoint::last_operation(std::uint32_t lane_number) {
  Lane& l = lane(lane_number);
  const std::lock_guard lock(mutex_);
  throw_if_aborted();
  return l.operations.empty() ? nullptr : l.operations.back();
}

StagedOperation* StagedEndpoint::begun_operation(Lane& l) {
  while (l.operations.size() > 1 && l.operations[1]->begun()) l.operations.pop_front();
  return l.operations.empty() || !l.operations.front()->begun() ? nullptr : l.operations.front().get();
}

void StagedEndpoint::wait(const Stream& stream, int peer, std::uint32_t flag) {
  std::shared_ptr<StagedReceive> receive;
  {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    for (const Lane& l : lanes_) {
      if (!receive && !l.operations.empty()) receive = l.operations.back()->receive(peer, flag);
    }
  }
  if (!receive) {
    throw Error(ErrorCode::invalid_usage, fmt::format("no receive from rank {} has flag {}", peer, flag), peer);
  }
  if (stream.impl().capture() != 0) {
    // A graph would copy again in every replay, whatever is in staging by then.
    throw Error(ErrorCode::invalid_usage,
                "what has arrived in host memory cannot be waited for while a graph is "
                "captured: synchronize with the operation first");
  }
  for (std::size_t piece = 0; piece < receive->bundle.pieces(); ++piece) {
    stream.impl().wait(receive->here[piece], {});
    receive->bundle.for_each_part(piece, [&](std::byte* data, std::size_t offset, std::size_t bytes) {
      copy(stream, data, receive->staging + offset, bytes);
    });
  }
  keep_for(stream);
}

void StagedEndpoint::keep_for(const Stream& stream) {
  const std::lock_guard lock(reading_);
  stream.record(read_);
  readers_.wait(read_);
}

void StagedEndpoint::wait_sent(const Stream& stream) {
  // While a graph is captured only operations that are done are waited for.
  if (stream.impl().capture() == 0) stream.wait(copied_out_);
}

bool StagedEndpoint::arrived(int peer, std::uint32_t flag) const noexcept {
  const std::lock_guard lock(mutex_);
  for (Lane& l : lanes_) {
    const StagedOperation* const operation = begun_operation(l);
    const auto receive = operation != nullptr ? operation->receive(peer, flag) : nullptr;
    if (receive) return receive->arrived();
  }
  return false;
}

bool StagedEndpoint::sent(int peer, std::uint32_t lane_number) const noexcept {
  if (lane_number >= lane_limit) return false;
  const std::lock_guard lock(mutex_);
  const StagedOperation* const operation = begun_operation(lanes_[lane_number]);
  return operation != nullptr && operation->sent(peer);
}

void StagedEndpoint::abort(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) abort_reason_ = reason;
    aborted_ = true;
  }
  watcher_.stop();
  transport_->abort(reason);
  {
    const std::unique_lock lock(host_copies_->mutex);
    host_copies_->stopped = true;
  }
  const std::lock_guard lock(mutex_);
  for (const Lane& l : lanes_) {
    for (const auto& operation : l.operations) operation->release();
  }
}

}  // namespace tandem::detail

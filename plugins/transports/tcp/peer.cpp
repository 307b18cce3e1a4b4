// SPDX-License-Identifier: Apache-2.0
#include "transports/tcp/peer.hpp"

#include <algorithm>

namespace tandem::tcp {

void Peer::connected(Socket socket) {
  if (!wants_connection()) return;
  stream_ = std::make_shared<Stream>(std::move(socket), *this);
  status_ = TANDEM_OK;
  stream_->start();
}

void Peer::post(const Operation& operation) {
  if (!failure_.empty()) {
    fail(failure_);
    operation.complete(ErrorCode::peer_failed, failure_);
    return;
  }
  if (!operation.is_send) {
    const auto id = next_id_++;
    receives_.emplace(id, Receive{operation});
    frames_.push_back({Frame::ready, 0, id, operation.tag, operation.bytes});
    return;
  }
  const auto serial = next_serial_++;
  const auto ready = unmatched_readies_.lower_bound(operation.tag);
  if (ready == unmatched_readies_.end() || ready->first != operation.tag) {
    unmatched_sends_.emplace(operation.tag, std::pair(serial, operation));
    return;
  }
  const Ready met = ready->second;
  unmatched_readies_.erase(ready);
  start(serial, operation, met);
}

void Peer::peer_is_ready(std::uint64_t tag, const Ready& ready) {
  const auto send = unmatched_sends_.lower_bound(tag);
  if (send == unmatched_sends_.end() || send->first != tag) {
    unmatched_readies_.emplace(tag, ready);
    return;
  }
  const auto [serial, operation] = send->second;
  unmatched_sends_.erase(send);
  start(serial, operation, ready);
}

void Peer::start(std::uint64_t serial, const Operation& operation, const Ready& ready) {
  if (operation.bytes == ready.bytes) {
    sending_.emplace(serial, Send{operation, ready.id});
    return;
  }
  frames_.push_back({Frame::mismatch, 0, ready.id, operation.tag, operation.bytes});
  operation.complete(ErrorCode::invalid_usage,
                     size_mismatch(operation.tag, rank_, operation.bytes, peer_, ready.bytes));
}

bool Peer::work() { return stream_ && stream_->work(); }

void Peer::fill() {
  if (!frames_.empty()) {
    stream_->queue(frames_);
    frames_.clear();
  }
  queue_segments();
}

void Peer::queue_segments() {
  while (!sending_.empty() && !stream_->has_enough()) {
    const auto first = sending_.begin();
    const auto serial = first->first;
    Send& send = first->second;
    const auto bytes = std::min(segment_bytes_, send.operation.bytes - send.queued);
    const bool again = ++send.copies < repeat_;
    const bool last = !again && send.queued + bytes == send.operation.bytes;
    const char* const segment = send.operation.buffer + send.queued;
    const Frame header{Frame::data, 0, send.id, send.operation.tag, bytes};
    if (!again) {
      send.queued += bytes;
      send.copies = 0;
    }
    if (last) {
      leaving_.emplace(serial, send.operation);
      sending_.erase(first);
    }
    stream_->queue(header, segment, last, serial);
  }
}

void Peer::send_finished(std::uint64_t serial) {
  const auto sent = leaving_.extract(serial);
  sent.mapped().complete(ErrorCode::ok);
}

Peer::Receive& Peer::find(const Frame& frame) {
  const auto receive = receives_.find(frame.id);
  if (receive == receives_.end()) throw ProtocolError(fmt::format("a frame speaks of an unknown receive {}", frame.id));
  return receive->second;
}

char* Peer::destination(const Frame& frame) {
  Receive& receive = find(frame);
  if (frame.bytes > receive.operation.bytes - receive.arrived)
    throw ProtocolError(
        fmt::format("{} bytes for a receive that lacks {}", frame.bytes, receive.operation.bytes - receive.arrived));
  return receive.operation.buffer + receive.arrived;
}

void Peer::data_arrived(std::uint64_t id, std::uint64_t bytes) {
  const auto receive = receives_.find(id);
  if (++receive->second.copies < repeat_) return;
  receive->second.copies = 0;
  receive->second.arrived += bytes;
  if (receive->second.arrived < receive->second.operation.bytes) return;
  const auto done = receives_.extract(receive);
  done.mapped().operation.complete(ErrorCode::ok);
}

void Peer::frame_arrived(const Frame& frame) {
  switch (frame.kind) {
    case Frame::ready:
      peer_is_ready(frame.tag, {frame.id, frame.bytes});
      break;
    case Frame::mismatch: {
      const Operation operation = find(frame).operation;
      receives_.erase(frame.id);
      operation.complete(ErrorCode::invalid_usage,
                         size_mismatch(operation.tag, peer_, frame.bytes, rank_, operation.bytes));
      break;
    }
    case Frame::bye: {
      const auto reason = fmt::format("rank {} closed its transport", peer_);
      stream_->stop();
      stream_->acknowledge();  // its close waits for that
      status_ = plugin::status(ErrorCode::peer_failed);
      failure_ = reason;
      if (has_pending()) fail(reason);
      break;
    }
    default:
      throw ProtocolError(fmt::format("a frame of unknown kind {}", frame.kind));
  }
}

void Peer::stream_ended(const std::string& reason) {
  status_ = plugin::status(ErrorCode::peer_failed);
  failure_ = fmt::format("rank {}: {}", peer_, reason);
  fail(failure_);
}

bool Peer::has_pending() const {
  return !receives_.empty() || !unmatched_sends_.empty() || !sending_.empty() || !leaving_.empty();
}

void Peer::fail(const std::string& reason) {
  if (!failure_told_) host_.peer_failed(peer_, reason);
  failure_told_ = true;
  stop(ErrorCode::peer_failed, reason);
}

void Peer::stop(ErrorCode code, const std::string& message) {
  stopped_ = true;
  if (stream_) stream_->stop();
  std::vector<Operation> pending;
  for (const auto& [tag, send] : unmatched_sends_) pending.push_back(send.second);
  for (const auto& [serial, send] : sending_) pending.push_back(send.operation);
  for (const auto& [serial, operation] : leaving_) pending.push_back(operation);
  for (const auto& [id, receive] : receives_) pending.push_back(receive.operation);
  unmatched_sends_.clear();
  sending_.clear();
  leaving_.clear();
  receives_.clear();
  for (const auto& operation : pending) operation.complete(code, message);
}

std::string Peer::size_mismatch(std::uint64_t tag, int sender, std::uint64_t sent, int receiver,
                                std::uint64_t wanted) const {
  return fmt::format("tag {:#x}: rank {} sends {} bytes, rank {} receives {}", tag, sender, sent, receiver, wanted);
}

}  // namespace tandem::tcp

// SPDX-License-Identifier: Apache-2.0
#include "comm/staged_operation.hpp"

namespace tandem::detail {

StagedReceive::StagedReceive(DeviceImpl& device, Bundle b, std::byte* at)
    : bundle(std::move(b)), staging(at), missing_(bundle.pieces()) {
  for (std::size_t piece = 0; piece < bundle.pieces(); ++piece) here.push_back(device.create_signal());
}

void StagedReceive::piece_arrived(std::size_t piece) noexcept {
  missing_.fetch_sub(1, std::memory_order_acq_rel);
  here[piece]->set();  // whom it releases finds that it has arrived
}

StagedOperation::StagedOperation(DeviceImpl& device, std::shared_ptr<SignalImpl> sent_before)
    : sent_before_(std::move(sent_before)), all_sent_(device.create_signal()) {}

void StagedOperation::add_receive(std::shared_ptr<StagedReceive> receive) {
  const std::pair key(receive->bundle.peer, receive->bundle.flag);
  receives_[key] = std::move(receive);
}

std::shared_ptr<StagedReceive> StagedOperation::receive(int peer, std::uint32_t flag) const {
  const auto it = receives_.find({peer, flag});
  return it == receives_.end() ? nullptr : it->second;
}

void StagedOperation::expect_sends(int peer, std::size_t pieces, bool last) {
  const std::lock_guard lock(mutex_);
  Sends& sends = sends_[peer];
  sends.under_way += pieces;
  sends.last = sends.last || last;
  under_way_ += pieces;
}

void StagedOperation::piece_sent(int peer) {
  const std::lock_guard lock(mutex_);
  --sends_[peer].under_way;
  if (--under_way_ == 0 && closed_) all_sent_->set();
}

bool StagedOperation::sent(int peer) const {
  const std::lock_guard lock(mutex_);
  const auto it = sends_.find(peer);
  return it != sends_.end() && it->second.last && it->second.under_way == 0;
}

std::shared_ptr<SignalImpl> StagedOperation::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (under_way_ == 0) all_sent_->set();
  return all_sent_;
}

void StagedOperation::release() noexcept {
  for (const auto& [key, receive] : receives_) {
    for (const auto& piece : receive->here) piece->set();
  }
  if (sent_before_) sent_before_->set();
  all_sent_->set();
}

}  // namespace tandem::detail

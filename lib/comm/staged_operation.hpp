// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/bundle.hpp"
#include "device/impl.hpp"

namespace tandem::detail {

/// A bundle on its way in: it arrives piece by piece in host memory, from where the stream that waits copies it.
struct StagedReceive {
  StagedReceive(DeviceImpl& device, Bundle b, std::byte* at);

  const Bundle bundle;
  std::byte* const staging;
  std::vector<std::shared_ptr<SignalImpl>> here;  ///< by piece

  bool arrived() const noexcept { return missing_.load(std::memory_order_acquire) == 0; }
  void piece_arrived(std::size_t piece) noexcept;

 private:
  std::atomic<std::size_t> missing_;
};

/// What an operation of a lane has under way between host memory and the network. Thread-safe once it is posted.
class StagedOperation {
 public:
  /// `sent_before`: set when the lane's last operation has left the memory that this one's sends pass through, or null.
  StagedOperation(DeviceImpl& device, std::shared_ptr<SignalImpl> sent_before);

  /// Before it is posted.
  void add_receive(std::shared_ptr<StagedReceive> receive);
  void set_begun(std::shared_ptr<const MarkImpl> begun) { begun_ = std::move(begun); }

  bool begun() const noexcept { return begun_->reached(); }
  /// Null if the operation has none.
  std::shared_ptr<StagedReceive> receive(int peer, std::uint32_t flag) const;
  const std::shared_ptr<SignalImpl>& sent_before() const noexcept { return sent_before_; }

  /// A send to `peer` in so many pieces was posted; `last`: there is no other to it.
  void expect_sends(int peer, std::size_t pieces, bool last);
  void piece_sent(int peer);
  bool sent(int peer) const;
  /// Nothing will be sent any more. Returns what is set when all is sent.
  std::shared_ptr<SignalImpl> close();

  /// Sets all signals: whoever waits goes on.
  void release() noexcept;

 private:
  struct Sends {
    std::size_t under_way = 0;
    bool last = false;
  };

  std::map<std::pair<int, std::uint32_t>, std::shared_ptr<StagedReceive>> receives_;
  std::shared_ptr<const MarkImpl> begun_;
  const std::shared_ptr<SignalImpl> sent_before_;
  const std::shared_ptr<SignalImpl> all_sent_;
  mutable std::mutex mutex_;
  std::map<int, Sends> sends_;  // by peer
  std::size_t under_way_ = 0;
  bool closed_ = false;
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/endpoint.hpp"
#include "comm/mark_watcher.hpp"
#include "comm/staged_operation.hpp"
#include "comm/staging.hpp"

namespace tandem::detail {

/// A host-driven transport with the face of a stream-ordered, two-sided one: how tcp moves a GPU's memory. It knows
/// nothing of streams, so what it moves passes through page-locked memory of the host.
///
/// - Sends are copied out on one stream for all, behind an event of the stream that posts; the host transport gets
///   them, piece by piece, when a mark behind the copy is reached. A thread watches the marks.
/// - Receives go to the host transport when the stream reaches the operation's beginning: until then the operation
///   before may be reading the same memory. Each piece has a signal, which wait() puts the stream behind, and after it
///   the copy to where the piece belongs.
/// - An operation's first copy out waits until the lane's operation before has left the memory. It depends on peers
///   then, but on nothing that the operation itself is needed for: they must have begun an earlier one.
///
/// So nothing has to be given to a stream later on, and nothing on a stream is needed to release one. Signals that a
/// failed transfer would have set are left to abort(): whoever asks whether something is here is not deceived.
///
/// Page-locked memory is allocated by reserve(), or, for what nobody has reserved or was larger than that (exchanges),
/// by the post that needs it, which may then wait for what the GPU has to do so far. It is kept until the endpoint
/// goes, and beyond that until copies that are under way are done. Device::memory_use() does not count it.
class StagedEndpoint final : public Endpoint {
 public:
  using TransferFailed = std::function<void(const Status&)>;

  /// `transport` is host-driven. `failed` is called from any thread for transfers that failed, but not for those that
  /// were aborted here; the status' rank is the peer.
  StagedEndpoint(std::shared_ptr<Endpoint> transport, Device device, TransferFailed failed);
  ~StagedEndpoint() override;
  /// What it calls itself over a transport of that name.
  static std::string name_of(const std::string& transport) { return transport + ", staged through host memory"; }

  Traits traits() const noexcept override;
  std::string name(int peer) const override;
  std::string address() override { return transport_->address(); }
  void connect(std::span<const std::string> addresses, Deadline deadline) override {
    transport_->connect(addresses, deadline);
  }
  std::vector<std::string> try_connect(std::span<const std::string> addresses, Deadline deadline) override {
    return transport_->try_connect(addresses, deadline);
  }
  void abort(const std::string& reason) noexcept override;

  void post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) override;
  void wait(const Stream& stream, int peer, std::uint32_t flag) override;
  void wait_sent(const Stream& stream) override;
  bool arrived(int peer, std::uint32_t flag) const noexcept override;
  bool sent(int peer, std::uint32_t lane) const noexcept override;
  bool places_on_wait(int) const noexcept override { return true; }
  void reserve(std::uint32_t lane, std::size_t received, std::size_t sent) override;

 private:
  static constexpr std::uint32_t lane_limit = 8;
  static constexpr std::uint32_t flag_limit = 1U << 20;  // they cost nothing

  struct Lane {
    explicit Lane(const Device& device) : received(device), sent(device) {}
    Staging received, sent;
    std::deque<std::shared_ptr<StagedOperation>> operations;  // the last to have begun, then those that will
  };
  /// Copies of host devices, which may not touch the caller's memory any more after abort().
  struct HostCopies {
    std::shared_mutex mutex;
    bool stopped = false;
  };

  Lane& lane(std::uint32_t number);
  void begin(const Stream& stream, std::span<const WireTransfer> receives, std::uint32_t lane_number);
  void send(const Stream& stream, std::span<const WireTransfer> sends, const LaneUse& use);
  std::shared_ptr<StagedOperation> last_operation(std::uint32_t lane_number);
  /// The one that streams have come to; null if there is none.
  static StagedOperation* begun_operation(Lane& lane);  // with the mutex held
  void post_receives(const std::shared_ptr<StagedOperation>& operation,
                     const std::vector<std::shared_ptr<StagedReceive>>& receives);
  void post_sends(const std::shared_ptr<StagedOperation>& operation, std::vector<WireTransfer> pieces);
  void start(std::span<const WireTransfer> transfers, Completion done);
  void report(const Status& status) const;
  void copy(const Stream& stream, void* destination, const void* source, std::size_t bytes) const;
  void throw_if_aborted() const;  // with the mutex held
  /// What `stream` has been given so far may read staging.
  void keep_for(const Stream& stream);
  void leave_memory() noexcept;

  const Device device_;
  const TransferFailed failed_;
  std::shared_ptr<Endpoint> transport_;
  const Stream out_;
  const Stream readers_;  // behind everything that copies out of staging; nobody waits for it
  // An event that is recorded anew moves nobody who waits for it already, so one of each kind is enough.
  const Event source_ready_;
  const Event copied_out_;
  const Event read_;
  std::mutex reading_;  // from the record of read_ to the wait for it
  const std::shared_ptr<HostCopies> host_copies_ = std::make_shared<HostCopies>();

  mutable std::mutex mutex_;  // never held while the device or the transport is called
  mutable std::vector<Lane> lanes_;
  bool aborted_ = false;
  std::string abort_reason_;

  MarkWatcher watcher_;
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/endpoint.hpp"
#include "device/impl.hpp"
#include "tandem/device.hpp"

namespace tandem::detail {

class CommunicatorImpl;
class OpState;

/// Calls on_wait(begin_ns, end_ns) on the stream when it is released.
using OnWait = std::function<void(std::int64_t, std::int64_t)>;

/// How streams wait for an operation of a stream-ordered transport, and how host threads see what became of it. Goes
/// with an OpState, which asks it where host-driven operations have signals.
///
/// Streams wait for flags of the transport. These are used again by the next operation of the lane, which first puts
/// its stream behind this one (`supersede`); whoever waits after that waits for an event of that stream. Packed rows
/// are placed by the first stream that waits for them.
///
/// Thread-safe; its mutexes are taken before OpState's, and never while a communicator's is held.
class StreamOp {
 public:
  using Place = std::function<void(const Stream&)>;

  /// `first_flag`: where the lane's flags start.
  StreamOp(std::weak_ptr<CommunicatorImpl> comm, const Device& device, std::uint32_t lane, std::uint32_t first_flag,
           const Stream& home);

  std::uint32_t lane() const noexcept { return lane_; }
  std::uint32_t first_flag() const noexcept { return first_flag_; }
  /// The operation is part of a graph: no host thread sees it run.
  bool captured() const noexcept { return capture_ != 0; }

  // Building. Items are OpState's.
  void expect_finish() { expects_finish_ = true; }
  void add_own(std::size_t item);
  /// `place` puts rows that have arrived packed where they belong; `outlives_slot`: they belong where the next
  /// operation of the lane does not write.
  void add_receive(std::size_t item, int peer, std::uint32_t flag, Place place = {}, bool outlives_slot = false);
  void add_send(std::size_t item, int peer);
  /// Everything that goes to `peer` has been posted.
  void all_posted(int peer);

  // Issuing, by the thread that issues operations, in this order.
  /// Everything of the operation that does not wait for a peer is enqueued on `home`.
  void begun(const Stream& home);
  /// Makes `stream`, of a later post, come after what begun() saw.
  void follow(const Stream& stream);
  /// Reductions: `stream` is about to wait for contributions; it has stored the results.
  void finishing(const Stream& stream);
  void finished(const Stream& stream);
  /// Throws invalid_usage if `stream` is being captured and this is neither `done` nor part of the same graph: a graph
  /// cannot depend on what runs outside of it.
  void check_capture(const Stream& stream, bool done) const;
  /// Puts the next operation of the lane behind this one. Flags and staging are its own from here on.
  void supersede(const Stream& next);
  /// When the one that has superseded this has begun, this one is over.
  void set_successor(std::shared_ptr<const MarkImpl> begun);
  const std::shared_ptr<const MarkImpl>& begin_mark() const noexcept { return begin_mark_; }

  // Waiting, any thread.
  void wait(const Stream& stream, std::size_t item, const OnWait& on_wait);
  /// Throws invalid_usage for a reduction that has not been finished: its streams would wait for ever.
  void check_finished();
  /// What Work::wait(stream) means beyond arrivals: sources have been read, results are stored.
  void wait_rest(const Stream& stream);
  /// Places what nobody has waited for, and blocks until all is in place. All has arrived.
  void place_rest(Deadline deadline);
  /// Tells `op` what has happened. No call of the device.
  void poll(OpState& op);
  /// Lets go of memory: nobody may wait any more.
  void drop();

 private:
  struct Arrival {
    bool remote = false;
    int peer = -1;
    std::uint32_t flag = 0;
    bool at_home = false;  ///< the home stream has waited for it
    Place place;
    bool outlives_slot = false;
    bool placed = false;
    std::uint64_t placed_on = 0;
    Event placed_event;
  };
  void wait_flag(const Stream& stream, Arrival& arrival, const OnWait& on_wait);
  void place_on(const Stream& stream, Arrival& arrival);
  /// Nothing if they are of different graphs: their order is for the caller to see to, by that of their launches.
  void wait_event(const Stream& stream, const Event& event, std::uint64_t recorded_on) const;
  bool has_sends() const noexcept { return !sends_.empty(); }

  const std::weak_ptr<CommunicatorImpl> comm_;
  const Device device_;
  const std::uint32_t lane_;
  const std::uint32_t first_flag_;
  const std::uint64_t home_;
  const std::uint64_t capture_;

  std::mutex mutex_;                         // what is enqueued
  std::map<std::size_t, Arrival> arrivals_;  // by item; the keys are fixed once the operation is issued
  std::map<int, std::vector<std::size_t>> sends_;
  Event begun_;
  bool is_begun_ = false;
  Event finished_;
  std::uint64_t finished_on_ = 0;
  bool is_finished_ = false;
  bool expects_finish_ = false;
  bool rest_at_home_ = false;  ///< the home stream has waited until what was sent had been read
  Event superseded_;
  std::uint64_t superseded_on_ = 0;
  bool is_superseded_ = false;

  std::mutex poll_mutex_;  // what the host has seen
  std::shared_ptr<const MarkImpl> begin_mark_, start_mark_, finish_mark_, successor_;
  bool seen_begin_ = false, seen_start_ = false, seen_finish_ = false;
  std::vector<std::pair<std::size_t, Arrival*>> awaited_;  // receives that have not been seen
  std::vector<int> unsent_;                                // peers
};

}  // namespace tandem::detail

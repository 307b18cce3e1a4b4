// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/endpoint.hpp"
#include "comm/stream_op.hpp"
#include "comm/tag.hpp"
#include "device/impl.hpp"
#include "tandem/trace.hpp"
#include "tandem/work.hpp"

namespace tandem::detail {

/// What of one chunk and field goes to or comes from one peer: the unit that has an arrival flag, a span, a line in
/// messages.
struct OpItem {
  bool receive = true;
  int field = 0;
  ChunkId chunk = 0;
  int peer = -1;
  std::uint64_t bytes = 0;
  bool posted = false;
  bool done = false;
  bool broken = false;      ///< a transfer of it failed
  std::size_t pending = 0;  ///< transfers under way
  std::int64_t posted_ns = 0;
  std::int64_t done_ns = 0;
  std::shared_ptr<SignalImpl> arrived;  ///< receives and own chunks of host-driven operations
  std::function<void()> on_arrival;     ///< runs before `arrived` is set; must be short and not throw
};

/// The shared state of one operation: its items, its first error, its flags. Thread-safe; its mutex is a leaf lock.
///
/// Buffers of an operation stay in use until the transport said so: a failed operation releases its waiters only when
/// no transfer is pending, so that nobody frees memory that is still written to.
class OpState : public std::enable_shared_from_this<OpState> {
 public:
  struct Setup {
    OpKind kind = OpKind::gather;
    std::int64_t sequence = 0;
    int rank = 0;
    std::vector<std::string> fields;
    std::vector<std::string> paths;  ///< by rank: the transport's name
    std::chrono::milliseconds timeout{};
    std::shared_ptr<DeviceImpl> device;
    std::shared_ptr<Trace> trace;
    /// A transfer failed while the operation had not; called outside of its lock.
    std::function<void(const Status&)> on_error;
  };
  explicit OpState(Setup setup);

  OpKind kind() const noexcept { return setup_.kind; }
  std::int64_t sequence() const noexcept { return setup_.sequence; }
  std::string describe() const;  ///< "gather (op 12)"

  // Building, by the issuing thread, before anything is enqueued.
  /// Makes it a stream-ordered operation; before the first item.
  void set_stream_op(std::shared_ptr<StreamOp> stream_op);
  const std::shared_ptr<StreamOp>& stream_op() const noexcept { return stream_op_; }
  std::size_t add_item(OpItem item);
  OpItem& item(std::size_t i) { return items_[i]; }
  void set_landed(std::vector<Tensor> landed) { landed_ = std::move(landed); }
  /// Keeps memory alive until the operation is done.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }
  /// Work on streams that must also run before the operation counts as done.
  void expect_task() { ++expected_; }
  /// Called once when no item will be added any more.
  void seal();
  /// Nothing of it will be enqueued: lets go of the memory that it keeps, which may keep it in turn.
  void discard();

  // Running, from streams and transport threads.
  /// Starts the deadline. False if the operation has failed: then nothing may be posted.
  bool start();
  /// Transfers are about to be posted: pairs of item and number of transfers. False if the operation has failed.
  bool begin_items(std::span<const std::pair<std::size_t, std::size_t>> transfers);
  void transfer_done(std::size_t i, const Status& status);
  /// An own chunk is in place.
  void local_done(std::size_t i);
  void task_done();
  /// First error wins. Returns true if it was this one.
  bool fail(const Status& status);

  // Stream-ordered operations, from whoever polls.
  /// Looks what has happened; nothing if it is host-driven.
  void poll();
  /// The stream has passed the beginning: transfers are under way, and the deadline of a gather runs.
  void seen_begin();
  /// A send leaves after the beginning.
  void posted(std::size_t i);
  void item_done(std::size_t i);
  /// After fail(): the transport touches nothing any more.
  void stopped();
  /// It is part of a graph: nobody will see what becomes of it.
  void leave_to_graph();

  // Asking.
  bool done() const;  ///< as far as poll() saw
  Status status() const;
  bool timed_out(Deadline::Clock::time_point now) const;
  std::chrono::nanoseconds running_for() const;
  bool started() const;
  std::vector<int> missing_ranks() const;
  /// "kv chunks 3-7 from rank 2; 2 sends to rank 1 not taken"
  std::string missing() const;
  Status timeout_status() const;

  void wait(const Stream& stream);
  void wait(const Stream& stream, std::string_view field);
  void wait(const Stream& stream, std::string_view field, ChunkId chunk);
  void synchronize(Deadline deadline);
  std::vector<std::string> paths() const;
  std::vector<ChunkTiming> chunk_timings() const;
  std::uint64_t bytes(bool received) const;
  Tensor landed(std::string_view field) const;
  /// Done in every respect, failed included: set when waiters may go on.
  const std::shared_ptr<SignalImpl>& all_done() const noexcept { return all_done_; }
  /// Orders the stream after item `i`, with a span of the wait.
  void wait_item(const Stream& stream, std::size_t i);

 private:
  /// How what goes to or comes from the rank travels.
  const std::string& path(int peer) const { return setup_.paths[static_cast<std::size_t>(peer)]; }
  int field_index(std::string_view field) const;
  void throw_if_failed() const;
  void finish_if_complete();  // with mutex_ held
  void record_transfer(const OpItem& item) const;
  bool watch_until_done(Deadline deadline);
  /// Lets go of memory when all is done. Outside of the lock, for the last handle of a region calls its transport.
  void drop_kept();
  /// Calls `wait`; if that fails because the operation just did, the operation's error is the one that is thrown.
  template <class F>
  void wait_in_order(F&& wait) const {
    try {
      wait();
    } catch (const Error&) {
      throw_if_failed();
      throw;
    }
  }

  const Setup setup_;
  std::vector<OpItem> items_;  // the vector itself is fixed once sealed
  std::map<std::pair<int, ChunkId>, std::vector<std::size_t>> by_chunk_;
  std::vector<Tensor> landed_;
  std::vector<std::shared_ptr<void>> kept_;
  std::shared_ptr<SignalImpl> all_done_;
  std::shared_ptr<StreamOp> stream_op_;  // null if host-driven

  mutable std::mutex mutex_;
  Status status_;
  bool started_ = false;
  bool finished_ = false;
  Deadline::Clock::time_point started_at_{};
  std::size_t expected_ = 0;   // items and tasks that are not done
  std::size_t in_flight_ = 0;  // transfers that the transport has; 1 while a stream-ordered operation may have any
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transports/tcp/operation.hpp"
#include "transports/tcp/stream.hpp"

namespace tandem::tcp {

/// Everything between this rank and one peer: transfers posted and not complete, and the connection once there is one.
/// A receive announces itself to the peer; a send starts when it has met the announcement that matches it. Used on the
/// progress thread only, apart from status().
class Peer final : public StreamOwner {
 public:
  /// `repeat`: how often every segment travels, the same on all ranks.
  Peer(int rank, int peer, std::uint64_t segment_bytes, std::uint64_t repeat, const plugin::Host& host)
      : rank_(rank), peer_(peer), segment_bytes_(segment_bytes), repeat_(repeat), host_(host) {}

  /// TANDEM_IN_PROGRESS until connected, then ok, then peer_failed. From any thread.
  tandem_status status() const { return status_; }
  bool wants_connection() const { return !stream_ && !stopped_; }
  void connected(Socket socket);
  /// Takes over `operation`; work() makes it start.
  void post(const Operation& operation);
  /// Moves bytes as far as the socket allows. False if nothing moved.
  bool work();
  bool is_busy() const { return stream_ && stream_->busy(); }
  bool has_pending() const;
  /// Completes all that is pending, uses no buffer from here on. The connection stays open, silent.
  void stop(ErrorCode code, const std::string& message);
  const std::shared_ptr<Stream>& stream() const { return stream_; }

  char* destination(const Frame& frame) override;
  void data_arrived(std::uint64_t id, std::uint64_t bytes) override;
  void frame_arrived(const Frame& frame) override;
  void stream_ended(const std::string& reason) override;
  void fill() override;
  void send_finished(std::uint64_t serial) override;

 private:
  struct Receive {
    Operation operation;
    std::uint64_t arrived = 0;
    std::uint64_t copies = 0;  // of the segment that is next
  };
  struct Send {
    Operation operation;
    std::uint64_t id = 0;      // the peer's name for it
    std::uint64_t queued = 0;  // bytes handed to the stream
    std::uint64_t copies = 0;  // of the segment that is next
  };
  struct Ready {
    std::uint64_t id;
    std::uint64_t bytes;
  };

  Receive& find(const Frame& frame);
  void peer_is_ready(std::uint64_t tag, const Ready& ready);
  void start(std::uint64_t serial, const Operation& operation, const Ready& ready);
  void queue_segments();
  void fail(const std::string& reason);
  std::string size_mismatch(std::uint64_t tag, int sender, std::uint64_t sent, int receiver,
                            std::uint64_t wanted) const;

  const int rank_;
  const int peer_;
  const std::uint64_t segment_bytes_;
  const std::uint64_t repeat_;
  const plugin::Host& host_;
  std::atomic<tandem_status> status_{TANDEM_IN_PROGRESS};
  std::shared_ptr<Stream> stream_;
  bool stopped_ = false;
  bool failure_told_ = false;
  std::string failure_;  // why every later transfer fails, once one does

  // Multimaps keep values of one key in the order they came, which is the order in which they match.
  std::multimap<std::uint64_t, std::pair<std::uint64_t, Operation>> unmatched_sends_;  // by tag; with their serial
  std::multimap<std::uint64_t, Ready> unmatched_readies_;                              // by tag
  std::map<std::uint64_t, Send> sending_;                 // by serial: earlier posted ones go first
  std::unordered_map<std::uint64_t, Operation> leaving_;  // all queued, not all written
  std::unordered_map<std::uint64_t, Receive> receives_;   // by id
  std::vector<Frame> frames_;                             // to be written
  std::uint64_t next_serial_ = 0;
  std::uint64_t next_id_ = 0;
};

}  // namespace tandem::tcp

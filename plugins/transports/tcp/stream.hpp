// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transports/tcp/socket.hpp"
#include "transports/tcp/wire.hpp"

namespace tandem::tcp {

/// What one connection needs from the peer behind it. Called on the progress thread.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  /// Where the `frame.bytes` bytes behind a data frame go. Throws ProtocolError if they were never asked for.
  virtual char* destination(const Frame& frame) = 0;
  /// They are all there.
  virtual void data_arrived(std::uint64_t id, std::uint64_t bytes) = 0;
  /// Any frame but data. Throws ProtocolError if it makes no sense.
  virtual void frame_arrived(const Frame& frame) = 0;
  /// The connection is of no more use. Called once, and nothing after it.
  virtual void stream_ended(const std::string& reason) = 0;
  /// Something was queued that is to be written: appends it to the stream until there is enough for one write.
  virtual void fill() = 0;
  /// The last byte of a segment that was queued with finishes = true has left its buffer.
  virtual void send_finished(std::uint64_t serial) = 0;
};

struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Frames on a connected socket, read straight into and written straight from their buffers. Used on the progress
/// thread only. Reads and writes are plain system calls on a non-blocking socket; asio says when to try.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Socket socket, StreamOwner& owner);

  void start() { work(); }
  /// A turn: writes what the owner has and reads what has come, some of each alternately, so that neither direction
  /// waits for the other. False if nothing moved. When the socket will not do more, asio calls again as soon as it
  /// will.
  bool work();
  /// Its last turn ended before the socket had enough: asio will not call, work() is to be called again.
  bool busy() const { return busy_; }
  /// Frames without data.
  void queue(const std::vector<Frame>& frames);
  /// One data frame and its segment, which must stay where it is until it is written.
  void queue(const Frame& header, const char* segment, bool finishes, std::uint64_t serial);
  /// The owner should queue no more for now.
  bool has_enough() const { return queued_bytes_ >= enough || pieces_.size() >= max_pieces; }

  /// No more calls to the owner, no more use of any buffer. The socket stays open.
  void stop();
  /// After stop(): says good-bye, unless a segment was cut in the middle, and ends the sending direction. May be called
  /// again until it returns true; false means that the socket takes no bytes at the moment.
  bool say_goodbye();
  /// Tells the peer now what has been received; the system would put that off.
  void acknowledge();
  int fd() { return socket_.native_handle(); }

 private:
  static constexpr std::uint64_t enough = 1U << 20;  // bytes of one write or read
  static constexpr std::size_t max_pieces = 64;
  static constexpr int longest_turn = 4;  // writes and reads, then other peers get theirs

  struct Piece {
    Frame header;               // of a segment
    std::vector<Frame> frames;  // or: these alone
    const char* segment = nullptr;
    bool finishes = false;
    std::uint64_t serial = 0;
    std::uint64_t written = 0;

    std::uint64_t head_bytes() const { return frames.empty() ? sizeof(Frame) : frames.size() * sizeof(Frame); }
    const char* head() const { return reinterpret_cast<const char*>(frames.empty() ? &header : frames.data()); }
    std::uint64_t size() const { return head_bytes() + (frames.empty() ? header.bytes : 0); }
  };

  void wait_for_socket();
  bool read_once();
  void parse();
  bool write_once();
  void written(std::uint64_t bytes);
  void end(const std::string& reason);

  Socket socket_;
  StreamOwner* owner_;  // null once stopped

  std::deque<Piece> pieces_;
  std::uint64_t queued_bytes_ = 0;
  bool waiting_to_read_ = false;
  bool waiting_to_write_ = false;
  bool busy_ = false;
  bool working_ = false;

  std::array<char, 16384> scratch_;  // headers, and what was read along with them
  std::size_t scratch_begin_ = 0;
  std::size_t scratch_end_ = 0;
  char* segment_at_ = nullptr;
  std::uint64_t segment_left_ = 0;
  Frame segment_;
};

}  // namespace tandem::tcp

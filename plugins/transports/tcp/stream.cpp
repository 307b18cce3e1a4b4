// SPDX-License-Identifier: Apache-2.0
#include "transports/tcp/stream.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace tandem::tcp {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

std::string describe(int error) { return std::generic_category().message(error); }

}  // namespace

Stream::Stream(Socket socket, StreamOwner& owner) : socket_(std::move(socket)), owner_(&owner) {
  socket_.native_non_blocking(true);
}

void Stream::stop() {
  owner_ = nullptr;
  boost::system::error_code ignored;
  socket_.cancel(ignored);
}

void Stream::end(const std::string& reason) {
  StreamOwner* const owner = owner_;
  stop();
  if (owner) owner->stream_ended(reason);
}

void Stream::wait_for_socket() {
  if (!std::exchange(waiting_to_read_, true)) {
    socket_.async_wait(socket_.wait_read, [self = shared_from_this()](const auto& error) {
      self->waiting_to_read_ = false;
      if (!error) self->work();
    });
  }
  if (!pieces_.empty() && !std::exchange(waiting_to_write_, true)) {
    socket_.async_wait(socket_.wait_write, [self = shared_from_this()](const auto& error) {
      self->waiting_to_write_ = false;
      if (!error) self->work();
    });
  }
}

bool Stream::work() {
  if (working_ || !owner_) return false;
  working_ = true;
  bool moved = false;
  bool moves = true;
  try {
    for (int turn = 0; owner_ && moves && turn < longest_turn; ++turn) {
      moves = false;
      owner_->fill();
      if (!pieces_.empty() && write_once()) moves = true;
      if (owner_ && read_once()) moves = true;
      moved |= moves;
    }
  } catch (const ProtocolError& e) {
    end(e.what());
  }
  working_ = false;
  busy_ = owner_ && moves;
  if (owner_ && !moves) wait_for_socket();
  return moved;
}

/// False if nothing was there.
bool Stream::read_once() {
  std::array<iovec, 2> parts;
  std::size_t count = 0;
  if (segment_left_ > 0) {
    parts[count++] = {segment_at_, std::min(segment_left_, enough)};
    // The next header comes along; bytes behind it would have to be copied once more.
    if (segment_left_ <= enough) parts[count++] = {scratch_.data(), sizeof(Frame)};
  } else {
    parts[count++] = {scratch_.data() + scratch_end_, scratch_.size() - scratch_end_};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const auto got = ::recvmsg(socket_.native_handle(), &message, 0);
  if (got < 0 && would_block(errno)) return false;
  if (got <= 0) {
    end(got == 0 ? "the connection was closed without a good-bye" : describe(errno));
    return false;
  }
  auto bytes = static_cast<std::uint64_t>(got);
  if (segment_left_ > 0) {
    const auto into_segment = std::min(bytes, segment_left_);
    segment_at_ += into_segment;
    segment_left_ -= into_segment;
    bytes -= into_segment;
    if (segment_left_ == 0) owner_->data_arrived(segment_.id, segment_.bytes);
  }
  scratch_end_ += bytes;
  if (owner_) parse();
  return true;
}

void Stream::parse() {
  while (owner_ && scratch_end_ - scratch_begin_ >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, scratch_.data() + scratch_begin_, sizeof(frame));
    scratch_begin_ += sizeof(frame);
    if (frame.kind != Frame::data) {
      owner_->frame_arrived(frame);
      continue;
    }
    char* const destination = owner_->destination(frame);
    const auto here = std::min<std::uint64_t>(frame.bytes, scratch_end_ - scratch_begin_);
    if (here > 0) std::memcpy(destination, scratch_.data() + scratch_begin_, here);
    scratch_begin_ += here;
    if (here == frame.bytes) {
      owner_->data_arrived(frame.id, frame.bytes);
      continue;
    }
    segment_ = frame;
    segment_at_ = destination + here;
    segment_left_ = frame.bytes - here;
  }
  std::memmove(scratch_.data(), scratch_.data() + scratch_begin_, scratch_end_ - scratch_begin_);
  scratch_end_ -= scratch_begin_;
  scratch_begin_ = 0;
}

void Stream::queue(const std::vector<Frame>& frames) {
  Piece piece;
  piece.frames = frames;
  queued_bytes_ += piece.size();
  pieces_.push_back(std::move(piece));
}

void Stream::queue(const Frame& header, const char* segment, bool finishes, std::uint64_t serial) {
  Piece piece;
  piece.header = header;
  piece.segment = segment;
  piece.finishes = finishes;
  piece.serial = serial;
  queued_bytes_ += piece.size();
  pieces_.push_back(std::move(piece));
}

/// False if the socket is full.
bool Stream::write_once() {
  std::array<iovec, 2 * max_pieces> parts;
  std::size_t count = 0;
  for (const auto& piece : pieces_) {
    if (count + 2 > parts.size()) break;
    const auto head = piece.head_bytes();
    if (piece.written < head) parts[count++] = {const_cast<char*>(piece.head()) + piece.written, head - piece.written};
    const auto segment_written = piece.written - std::min(piece.written, head);
    if (piece.size() > head + segment_written)
      parts[count++] = {const_cast<char*>(piece.segment) + segment_written, piece.size() - head - segment_written};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const auto sent = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
  if (sent < 0 && would_block(errno)) return false;
  if (sent < 0) {
    // What the peer said last may still wait to be read, and says more than this error: reading meets the end anyway.
    if (errno != EPIPE && errno != ECONNRESET) end(describe(errno));
    pieces_.clear();
    queued_bytes_ = 0;
    return false;
  }
  written(static_cast<std::uint64_t>(sent));
  return true;
}

void Stream::written(std::uint64_t bytes) {
  queued_bytes_ -= bytes;
  while (bytes > 0) {
    Piece& piece = pieces_.front();
    const auto now = std::min(bytes, piece.size() - piece.written);
    piece.written += now;
    bytes -= now;
    if (piece.written < piece.size()) return;
    const bool finishes = piece.finishes;
    const auto serial = piece.serial;
    pieces_.pop_front();
    if (finishes) owner_->send_finished(serial);
  }
}

void Stream::acknowledge() {
  const int on = 1;
  ::setsockopt(fd(), IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
}

bool Stream::say_goodbye() {
  if (!pieces_.empty() && pieces_.front().written > 0 && pieces_.front().frames.empty()) {
    pieces_.clear();  // cut: the peer has to see the connection end without a good-bye
  } else if (pieces_.empty() || pieces_.back().frames.empty() || pieces_.back().frames.back().kind != Frame::bye) {
    while (!pieces_.empty() && pieces_.back().written == 0) pieces_.pop_back();
    Frame bye;
    bye.kind = Frame::bye;
    queue({bye});
  }
  while (!pieces_.empty()) {
    Piece& piece = pieces_.front();
    const auto sent = ::send(fd(), piece.head() + piece.written, piece.size() - piece.written, MSG_NOSIGNAL);
    if (sent < 0 && would_block(errno)) return false;
    if (sent < 0) break;
    piece.written += static_cast<std::uint64_t>(sent);
    if (piece.written == piece.size()) pieces_.pop_front();
  }
  pieces_.clear();
  ::shutdown(fd(), SHUT_WR);
  return true;
}

}  // namespace tandem::tcp

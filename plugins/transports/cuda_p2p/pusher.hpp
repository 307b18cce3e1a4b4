// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "device/cuda/context.hpp"
#include "tandem/deadline.hpp"
#include "transports/cuda_p2p/board.hpp"
#include "transports/cuda_p2p/push_kernel.hpp"

namespace tandem::cuda_p2p {

/// What pushes to one peer: a stream that copies, in order, and one that raises flags behind copies. Raised by the
/// first one, a flag would hold up the next copy for some microseconds, which is how long the change from a copy engine
/// to memory operations and back takes.
class Pusher {
 public:
  explicit Pusher(const detail::cuda::Context& context);
  ~Pusher();
  Pusher(const Pusher&) = delete;
  Pusher& operator=(const Pusher&) = delete;

  /// What follows starts behind `event`.
  void follow(cudaEvent_t event);
  /// Waits until the peer has posted its receives of the lane, and takes that back for the next time.
  void await_ready(const Board::Word& ready);
  void copy(void* destination, const void* source, std::uint64_t bytes);
  /// Copies and raises in one launch of a kernel, instead of copy() and finish(). At most as many as fit.
  void push(std::span<const KernelPush::Piece> pieces, std::span<const Board::Word* const> words);
  /// Raises `word` behind the copies so far, while others follow.
  void raise(const Board::Word& word);
  /// The copies so far are what streams wait for in join(), and `words` are raised behind them.
  void finish(std::span<const Board::Word* const> words);
  /// `stream` waits for what was finished last, unless that was in another capture, or in one where the stream is in
  /// none: it then belongs to work that has no order with the stream but that of the graph as a whole. In a capture it
  /// waits for the flags as well: nothing may be left that leads nowhere.
  void join(cudaStream_t stream) const;
  bool idle() const;

 private:
  void destroy() const noexcept;
  void finished();

  const detail::cuda::Context context_;
  cudaStream_t copies_ = nullptr;
  cudaStream_t flags_ = nullptr;
  unsigned* blocks_done_ = nullptr;
  cudaEvent_t copied_ = nullptr;  // a chunk
  cudaEvent_t finished_ = nullptr;
  cudaEvent_t end_ = nullptr;
  bool finished_any_ = false;
  unsigned long long finished_in_ = 0;  // the capture; 0 is none
};

/// `stream` waits until the word is raised.
void wait_raised(cudaStream_t stream, const Board::Word& word, int ordinal);
/// Words become 0, then 1, in this order, one stream operation for many.
void reset_then_raise(cudaStream_t stream, std::span<const Board::Word* const> reset,
                      std::span<const Board::Word* const> raise, int ordinal);

}  // namespace tandem::cuda_p2p

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "device/cuda/context.hpp"
#include "tandem/deadline.hpp"
#include "transports/cuda_p2p/board.hpp"

namespace tandem::cuda_p2p {

/// The stream that pushes to one peer. One stream a peer is enough for the copy engines, and keeps the order.
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
  void raise(const Board::Word& arrival);
  /// What was pushed so far is what streams wait for in join().
  void mark();
  /// `stream` waits for the last mark, unless that was made in another capture, or in one where the stream is in none:
  /// it then belongs to work that has no order with the stream but that of the graph as a whole.
  void join(cudaStream_t stream) const;
  bool idle() const;

 private:
  const detail::cuda::Context context_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t pushed_ = nullptr;
  bool marked_ = false;
  unsigned long long marked_in_ = 0;  // the capture; 0 is none
};

/// `stream` waits until the word is raised.
void wait_raised(cudaStream_t stream, const Board::Word& word, int ordinal);
/// Words become 0, then 1, in this order, one stream operation for many.
void reset_then_raise(cudaStream_t stream, std::span<const Board::Word* const> reset,
                      std::span<const Board::Word* const> raise, int ordinal);

}  // namespace tandem::cuda_p2p

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/context.hpp"
#include "tandem/deadline.hpp"
#include "transports/cuda_p2p/board.hpp"
#include "transports/cuda_p2p/push_kernel.hpp"

namespace tandem::cuda_p2p {

/// What pushes to one peer: some streams that take the chunks of a post by turns. Between a copy and the next one of
/// the same stream lie some microseconds, in which a flag is raised or not; other streams' copies fill them.
class Pusher {
 public:
  Pusher(const detail::cuda::Context& context, std::size_t streams);
  ~Pusher();
  Pusher(const Pusher&) = delete;
  Pusher& operator=(const Pusher&) = delete;

  /// Begins a post: all of it is behind `source`, and, if `ready` is given, behind the peer's receives of the lane,
  /// whose news is taken back for the next time.
  void begin(cudaEvent_t source, const Board::Word* ready);
  /// Copies of a chunk, by its number in the post, and its flag behind them.
  void copy(std::size_t chunk, void* destination, const void* source, std::uint64_t bytes);
  void raise(std::size_t chunk, const Board::Word& arrival);
  /// All of the post in one launch of a kernel, with its flags. At most as many as fit.
  void push(std::span<const KernelPush::Piece> pieces, std::span<const Board::Word* const> words);
  /// Ends the post. `sent`, if given, is raised when all that was posted has been read.
  void end(const Board::Word* sent);
  /// `stream` waits until what was posted has been read, unless that was in another capture, or in one where the stream
  /// is in none: it then belongs to work that has no order with the stream but that of the graph as a whole.
  void join(cudaStream_t stream) const;
  bool idle() const;

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t read = nullptr;  // behind the last copy
    bool has_read = false;
    unsigned long long read_in = 0;  // the capture; 0 is none
    bool used = false;               // by this post
  };
  /// The stream for a chunk, behind the beginning of the post.
  Lane& lane_of(std::size_t chunk);
  void mark_read(Lane& lane) const;
  void record(cudaEvent_t event, cudaStream_t stream) const;
  void hold(cudaStream_t stream, cudaEvent_t event) const;
  void destroy() const noexcept;

  const detail::cuda::Context context_;
  std::vector<Lane> lanes_;
  cudaEvent_t begun_ = nullptr;
  cudaEvent_t ended_ = nullptr;
  unsigned* blocks_done_ = nullptr;
};

}  // namespace tandem::cuda_p2p

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/cuda/context.hpp"
#include "transports/common/plugin.hpp"
#include "transports/cuda_p2p/board.hpp"
#include "transports/cuda_p2p/fd_service.hpp"
#include "transports/cuda_p2p/pusher.hpp"
#include "transports/cuda_p2p/region.hpp"

namespace tandem::cuda_p2p {

struct Membership {
  Group group{};
  int rank = 0;
  int size = 0;
  int device = 0;
  std::uint64_t kernel_bytes = 0;  ///< a post of no more bytes to a peer is pushed by a kernel
  std::size_t streams = 3;         ///< that push to one peer
  int repeat = 1;                  ///< how often every byte is pushed, to play a slower link
};

/// One rank of one group whose ranks all live on one host. Every call that enqueues is made by one thread at a time;
/// arrived(), sent() and abort() by any.
class Context {
 public:
  using Stream = cudaStream_t;

  /// Throws tandem::Error.
  Context(const Membership& self, const plugin::Host& host);
  ~Context();

  const plugin::Host& host() const { return host_; }
  int rank() const { return self_.rank; }
  int size() const { return self_.size; }
  std::string address() const;
  /// Throws tandem::Error naming the peer whose address makes no sense.
  void connect(const std::vector<std::string_view>& addresses);
  /// A peer on another host, or whose memory this GPU cannot reach, has an error, and is never sent to.
  tandem_status connect_test(int peer) const;
  std::string connect_error(int peer);

  void post(std::span<const tandem_transfer> transfers, cudaStream_t stream, const plugin::LaneUse& use);
  void wait(cudaStream_t stream, int peer, std::uint32_t flag) const;
  void wait_sent(cudaStream_t stream) const;
  bool arrived(int peer, std::uint32_t flag) const;
  bool sent(int peer, std::uint32_t lane) const;

  void* allocate(std::uint64_t bytes, std::uint64_t* region);
  std::string describe(std::uint64_t region) const;
  void attach(std::uint64_t region, const std::vector<std::string_view>& blobs);
  void release(std::uint64_t region);

  void abort(const std::string& reason);

 private:
  struct Peer {
    std::string service;
    std::atomic<tandem_status> status{TANDEM_IN_PROGRESS};
    std::string error;  // under mutex_
    Board board;
    std::unique_ptr<Pusher> pusher;
  };
  struct SharedRegion {
    Region own;
    std::vector<Region> of_peers;
  };

  void reach_peers();
  void reach(int peer);
  void lose(int peer, ErrorCode code, const std::string& why);
  void begin(std::span<const tandem_transfer> transfers, cudaStream_t stream, std::uint32_t lane);
  void send(std::span<const tandem_transfer> transfers, cudaStream_t stream, const plugin::LaneUse& use);
  void push(int peer, std::span<const tandem_transfer* const> transfers, const plugin::LaneUse& use);
  bool push_by_kernel(int peer, std::span<const tandem_transfer* const> transfers, const plugin::LaneUse& use);
  void* remote(const tandem_transfer& transfer) const;
  void keep_released();
  Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }
  SharedRegion& region(std::uint64_t number);
  const SharedRegion& region(std::uint64_t number) const;

  const Membership self_;
  const plugin::Host host_;
  const detail::cuda::Context cuda_;
  Board board_;
  Region probe_;  // peers map it to see whether they can
  FdService service_;
  std::vector<std::unique_ptr<Peer>> peers_;  // the own one has no board and no pusher
  std::vector<std::unique_ptr<SharedRegion>> regions_;
  cudaEvent_t source_ = nullptr;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> aborted_{false};
  bool closing_ = false;
  std::thread connector_, releaser_;
};

}  // namespace tandem::cuda_p2p

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <span>

#include "device/cuda/context.hpp"
#include "tandem/deadline.hpp"
#include "tandem/plugin/transport.h"
#include "transports/nccl/library.hpp"

namespace tandem::nccl {

/// A non-blocking communicator of NCCL. None of its calls waits for a peer but finalize(), which has a deadline, and
/// abort(), which may take as long as NCCL does. Any thread.
class NcclCommunicator {
 public:
  NcclCommunicator(const Library& nccl, const detail::cuda::Context& context) : nccl_(nccl), context_(context) {}
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Starts to make it; settled() says when it is there.
  void start(const ncclUniqueId& id, int rank, int size);
  /// False while NCCL is at what it was told last. Throws transport if that failed, aborted after stop().
  bool settled();
  /// One group, in `stream`'s order: sends and receives of at least a byte each. Returns when NCCL has put it on the
  /// stream, which takes NCCL no more than a moment once ranks have exchanged something. The calling thread asks until
  /// then: throws timeout past the deadline, transport, aborted after stop().
  void launch(std::span<const tandem_transfer> transfers, cudaStream_t stream, Deadline deadline);
  /// What NCCL says of it; a success, too, while another call is at it or when it is gone. Never waits.
  ncclResult_t asynchronous_error() noexcept;
  /// NCCL's last words about an error.
  std::string describe(ncclResult_t error);

  /// Everything under way and to come ends with aborted.
  void stop() noexcept { stopped_ = true; }
  /// Ends what runs on the GPU, and frees it. Other ranks are not asked.
  void abort() noexcept;
  /// Frees it in agreement with the other ranks; false if they did not come in time, or NCCL failed.
  bool finalize(Deadline deadline);

 private:
  bool settled_locked();
  void revoke() noexcept;

  const Library& nccl_;
  const detail::cuda::Context context_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace tandem::nccl

// SPDX-License-Identifier: Apache-2.0
#include "transports/nccl/communicator.hpp"

#include <fmt/format.h>

#include <utility>

#include "device/cuda/poll.hpp"
#include "tandem/error.hpp"

namespace tandem::nccl {

using detail::cuda::poll_until;

namespace {

constexpr std::chrono::seconds revoke_patience{1};

bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

}  // namespace

void NcclCommunicator::start(const ncclUniqueId& id, int rank, int size) {
  const std::lock_guard lock(mutex_);
  const detail::cuda::DeviceGuard guard(context_);
  const detail::cuda::RelaxedCapture relaxed;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = nccl_.ncclCommInitRankConfig(&comm_, size, id, rank, &config);
  if (is_error(result)) comm_ = nullptr;
  check(nccl_, result, "ncclCommInitRankConfig", nullptr);
}

bool NcclCommunicator::settled() {
  const std::lock_guard lock(mutex_);
  return settled_locked();
}

bool NcclCommunicator::settled_locked() {
  if (stopped_ || comm_ == nullptr) throw Error(ErrorCode::aborted, "the transport was aborted");
  ncclResult_t state = ncclSuccess;
  check(nccl_, nccl_.ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
  check(nccl_, state, "NCCL", comm_);
  return state == ncclSuccess;
}

void NcclCommunicator::launch(std::span<const tandem_transfer> transfers, cudaStream_t stream, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || comm_ == nullptr) throw Error(ErrorCode::aborted, "the transport was aborted");
  check(nccl_, nccl_.ncclGroupStart(), "ncclGroupStart", comm_);
  ncclResult_t result = ncclSuccess;
  const char* call = "";
  for (const tandem_transfer& t : transfers) {
    const bool sends = t.direction == TANDEM_SEND;
    call = sends ? "ncclSend" : "ncclRecv";
    const auto bytes = static_cast<std::size_t>(t.bytes);
    result = sends ? nccl_.ncclSend(t.buffer, bytes, ncclUint8, t.peer, comm_, stream)
                   : nccl_.ncclRecv(t.buffer, bytes, ncclUint8, t.peer, comm_, stream);
    if (is_error(result)) break;
  }
  const ncclResult_t ended = nccl_.ncclGroupEnd();  // also after an error: the thread would stay in the group
  check(nccl_, result, call, comm_);
  check(nccl_, ended, "ncclGroupEnd", comm_);
  if (!poll_until(deadline, [&] { return settled_locked(); })) {
    throw Error(ErrorCode::timeout, "NCCL has not put a group on its stream in time: ranks may not be started alike");
  }
}

ncclResult_t NcclCommunicator::asynchronous_error() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr || stopped_) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.ncclCommGetAsyncError(comm_, &state);
  return is_error(asked) ? asked : state;
}

std::string NcclCommunicator::describe(ncclResult_t error) {
  const std::lock_guard lock(mutex_);
  const char* const detail = nccl_.ncclGetLastError(comm_);
  const std::string more = detail != nullptr && *detail != '\0' ? fmt::format(": {}", detail) : "";
  return fmt::format("{}{}", nccl_.ncclGetErrorString(error), more);
}

void NcclCommunicator::abort() noexcept {
  stop();
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (!guard) return;
  const detail::cuda::RelaxedCapture relaxed;
  revoke();
  static_cast<void>(nccl_.ncclCommAbort(std::exchange(comm_, nullptr)));  // there is nobody left to tell
}

/// Ends what runs without freeing anything, so that streams go on even if freeing takes long.
void NcclCommunicator::revoke() noexcept {
  if (nccl_.ncclCommRevoke == nullptr || is_error(nccl_.ncclCommRevoke(comm_, 0))) return;
  poll_until(Deadline::after(revoke_patience), [&] {
    ncclResult_t state = ncclSuccess;
    return is_error(nccl_.ncclCommGetAsyncError(comm_, &state)) || state != ncclInProgress;
  });
}

bool NcclCommunicator::finalize(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return true;
  const detail::cuda::DeviceGuard guard(context_);
  const detail::cuda::RelaxedCapture relaxed;
  if (is_error(nccl_.ncclCommFinalize(comm_))) return false;
  ncclResult_t state = ncclInProgress;
  const bool ended = poll_until(
      deadline, [&] { return is_error(nccl_.ncclCommGetAsyncError(comm_, &state)) || state != ncclInProgress; });
  if (!ended || state != ncclSuccess) return false;
  return !is_error(nccl_.ncclCommDestroy(std::exchange(comm_, nullptr)));
}

}  // namespace tandem::nccl

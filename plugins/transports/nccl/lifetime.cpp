// SPDX-License-Identifier: Apache-2.0
// How a context comes and goes: what its threads do.
#include <fmt/format.h>

#include "base/thread.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/poll.hpp"
#include "tandem/deadline.hpp"
#include "tandem/error.hpp"
#include "transports/nccl/context.hpp"

namespace tandem::nccl {

using detail::cuda::check_quietly;
using detail::cuda::DeviceGuard;
using detail::cuda::poll_until;
using detail::cuda::QuietDeviceGuard;
using detail::cuda::RelaxedCapture;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr milliseconds watch_interval{50};
// Streams that an abort released need a moment to come to their end; past it the words stay where they are.
constexpr seconds drain_patience{2};
// For the other ranks to close, too, and for NCCL to come back from its abort.
constexpr seconds finalize_patience{2};
constexpr seconds abort_patience{5};

}  // namespace

void Context::connect(const std::vector<std::string_view>& blobs) {
  std::vector<Address> addresses;
  for (std::size_t p = 0; p < blobs.size(); ++p) {
    try {
      addresses.push_back(Address::decode(blobs[p]));
    } catch (const Error& e) {
      throw Error(ErrorCode::invalid_argument, fmt::format("the address of rank {} is malformed: {}", p, e.what()));
    }
  }
  if (addresses[0].unique_id.size() != sizeof(ncclUniqueId::internal))
    throw Error(ErrorCode::invalid_argument, "the address of rank 0 has no unique id of NCCL");
  try {
    check_together(addresses, self_.may_share_gpus);
  } catch (const Error& e) {
    lose(e.code(), e.what());
    return;
  }
  watcher_ = detail::start_thread([this, id = addresses[0].unique_id] {
    detail::set_thread_name("tandem-nccl");
    make_communicator(id);
    if (status_ == TANDEM_OK) watch();
  });
}

void Context::lose(ErrorCode code, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    connect_error_ = why;
  }
  status_.store(plugin::status(code), std::memory_order_release);
}

std::string Context::connect_error(int) const {
  const std::lock_guard lock(mutex_);
  return connect_error_;
}

void Context::make_communicator(const std::string& unique_id) {
  try {
    ncclUniqueId id{};
    unique_id.copy(id.internal, sizeof(id.internal));
    communicator_->start(id, self_.rank, self_.size);
    // Until the host gives up: a peer may be late.
    poll_until(Deadline::after(std::chrono::hours(1)), [&] { return communicator_->settled(); });
    exchange_first_bytes();
    status_.store(TANDEM_OK, std::memory_order_release);
  } catch (const Error& e) {
    lose(e.code(), e.what());
  } catch (const std::exception& e) {  // memory or threads ran out: the connection fails, not the process
    lose(ErrorCode::internal, e.what());
  }
}

/// NCCL connects two ranks when they first exchange something, which takes long, allocates, and blocks the call on the
/// peer. Here nobody minds.
void Context::exchange_first_bytes() {
  if (self_.size == 1) return;
  const DeviceGuard guard(cuda_);
  const RelaxedCapture relaxed;
  std::vector<tandem_transfer> transfers;
  for (int p = 0; p < self_.size; ++p) {
    if (p == self_.rank) continue;
    tandem_transfer t{};
    t.peer = p;
    t.bytes = 1;
    t.direction = TANDEM_SEND;
    t.buffer = static_cast<char*>(first_bytes_) + self_.rank;
    transfers.push_back(t);
    t.direction = TANDEM_RECEIVE;
    t.buffer = static_cast<char*>(first_bytes_) + p;
    transfers.push_back(t);
  }
  communicator_->launch(transfers, stream_, Deadline::after(std::chrono::hours(1)));
  poll_until(Deadline::after(std::chrono::hours(1)), [&] { return aborted_ || idle(); });
}

bool Context::idle() const { return detail::cuda::ready(cudaStreamQuery(stream_), "cudaStreamQuery", cuda_.ordinal); }

void Context::watch() {
  std::unique_lock lock(mutex_);
  while (!closing_ && !aborted_) {
    lock.unlock();
    const ncclResult_t error = communicator_->asynchronous_error();
    if (error != ncclSuccess && error != ncclInProgress) {
      report(error);
      return;
    }
    lock.lock();
    wake_.wait_for(lock, watch_interval, [&] { return closing_ || aborted_; });
  }
}

void Context::report(ncclResult_t error) {
  const std::string reason = communicator_->describe(error);
  host_.log(TANDEM_LOG_ERROR, "NCCL reports: {}", reason);
  status_ = plugin::status(ErrorCode::transport);
  if (self_.size > 1) host_.peer_failed(suspect(), fmt::format("NCCL, which does not say who, reports: {}", reason));
}

/// NCCL does not name a rank: one that something is missing from, or any.
int Context::suspect() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [peer, flag] : awaited_) {
    if (!arrived(peer, flag)) return peer;
  }
  return self_.rank == 0 ? 1 : 0;
}

void Context::abort(const std::string&) {
  const std::lock_guard lock(mutex_);
  if (aborted_.exchange(true)) return;
  wake_.notify_all();
  words_.raise_all();
  communicator_->stop();
  releaser_ = detail::start_thread([this] { keep_released(); });
  abort_communicator();
}

/// In a thread, as it may take long; one that can be left behind, so it has nothing of this context.
void Context::abort_communicator() {
  std::promise<void> aborted;
  communicator_aborted_ = aborted.get_future();
  aborter_ = detail::start_thread([communicator = communicator_, aborted = std::move(aborted)]() mutable {
    detail::set_thread_name("tandem-abort");
    communicator->abort();
    aborted.set_value();
  });
}

/// Streams may still come to a reset and then to a wait behind it: everything is raised again and again until the
/// transport is closed and what it started is at its end.
void Context::keep_released() {
  detail::set_thread_name("tandem-release");
  Deadline until = Deadline::after(std::chrono::hours(1));
  bool closing = false;
  for (;;) {
    words_.raise_all();
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::microseconds(200), [&] { return closing_ && !closing; });
    if (closing_ && !closing) {
      closing = true;
      until = Deadline::after(drain_patience);
    }
    lock.unlock();
    if (!closing) continue;
    const QuietDeviceGuard guard(cuda_);
    const RelaxedCapture relaxed;
    try {
      if (!guard || idle()) return;
    } catch (const Error&) {
      return;  // the GPU is of no more use
    }
    if (until.passed()) {
      host_.log(TANDEM_LOG_WARN, "rank {} closes while NCCL still runs", self_.rank);
      words_.abandon();
      return;
    }
  }
}

Context::~Context() {
  const bool in_order = status_ == TANDEM_OK && !aborted_ && close_communicator();
  if (!in_order) abort("the transport was closed");
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (releaser_.joinable()) releaser_.join();
  if (aborter_.joinable()) {
    if (communicator_aborted_.wait_for(abort_patience) == std::future_status::ready) {
      aborter_.join();
    } else {
      host_.log(TANDEM_LOG_WARN, "rank {} closes while NCCL still frees its communicator", self_.rank);
      aborter_.detach();
    }
  }
  sent_mark_.reset();
  const QuietDeviceGuard guard(cuda_);
  if (!guard) return;
  check_quietly(cudaStreamDestroy(stream_), "cudaStreamDestroy", cuda_.ordinal);
  const RelaxedCapture relaxed;
  check_quietly(cudaFree(first_bytes_), "cudaFree", cuda_.ordinal);
}

/// Where everything is done and the others close as well, NCCL parts without harm to what they still do.
bool Context::close_communicator() {
  try {
    const DeviceGuard guard(cuda_);
    const RelaxedCapture relaxed;
    return poll_until(Deadline::after(drain_patience), [&] { return idle(); }) &&
           communicator_->finalize(Deadline::after(finalize_patience));
  } catch (const std::exception& e) {
    host_.log(TANDEM_LOG_WARN, "rank {} closes out of order: {}", self_.rank, e.what());
    return false;
  }
}

}  // namespace tandem::nccl

// SPDX-License-Identifier: Apache-2.0
#include "transports/nccl/context.hpp"

#include <fmt/format.h>

#include <cstring>

#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/words.hpp"
#include "tandem/deadline.hpp"
#include "tandem/error.hpp"

namespace tandem::nccl {

using detail::cuda::capture_of;
using detail::cuda::check;
using detail::cuda::DeviceGuard;
using detail::cuda::driver;
using detail::cuda::PooledEvent;
using detail::cuda::reset_then_raise;

namespace {

// NCCL takes a group within microseconds once it is connected. This is for a host that swaps or a GPU that is stuck.
constexpr std::chrono::seconds launch_patience{10};

Address own_address(const Membership& self, const Library& library, const detail::cuda::Context& cuda) {
  const DeviceGuard guard(cuda);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, self.device), "cudaGetDeviceProperties", self.device);
  Address address;
  std::memcpy(address.gpu.data(), properties.uuid.bytes, address.gpu.size());
  address.version = library.version;
  if (self.rank == 0) {
    ncclUniqueId id{};
    nccl::check(library, library.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    address.unique_id.assign(id.internal, sizeof(id.internal));
  }
  return address;
}

}  // namespace

Context::Context(const Membership& self, const plugin::Host& host, const Library& library)
    : self_(self),
      host_(host),
      library_(library),
      cuda_(detail::cuda::Context::open(self.device)),
      address_(own_address(self, library, cuda_)),
      words_(self.size, cuda_),
      events_(std::make_shared<detail::cuda::EventPool>(cuda_)),
      communicator_(std::make_shared<NcclCommunicator>(library, cuda_)) {
  const DeviceGuard guard(cuda_);
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange", cuda_.ordinal);
  check(cudaMalloc(&first_bytes_, static_cast<std::size_t>(self.size)), "cudaMalloc", cuda_.ordinal);
  const cudaError_t made = cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest);
  if (made != cudaSuccess) static_cast<void>(cudaFree(first_bytes_));
  check(made, "cudaStreamCreateWithPriority", cuda_.ordinal);
}

void Context::post(std::span<const tandem_transfer> transfers, cudaStream_t stream, const plugin::LaneUse& use) {
  if (aborted_) throw Error(ErrorCode::aborted, "the transport was aborted");
  Lane& lane = lanes_[use.lane];
  if (use.begin == lane.begun) {
    const char* const what =
        use.begin ? "an operation begins before the one before it was flushed" : "nothing has begun";
    throw Error(ErrorCode::invalid_usage, fmt::format("lane {}: {}", use.lane, what));
  }
  const DeviceGuard guard(cuda_);
  if (use.begin) begin(transfers, stream, use.lane);
  lane.begun = true;
  lane.transfers.insert(lane.transfers.end(), transfers.begin(), transfers.end());
  lane.posted.push_back(record(stream));
}

/// Behind everything that `stream` did so far, which includes the last reader of what landed there before.
void Context::begin(std::span<const tandem_transfer> transfers, cudaStream_t stream, std::uint32_t lane) {
  std::vector<const FlagWords::Word*> reset;
  const std::lock_guard lock(mutex_);
  for (const tandem_transfer& t : transfers) {
    if (t.direction != TANDEM_RECEIVE) continue;
    const FlagWords::Word* const word = &words_.arrival(t.peer, t.flag);
    if (reset.empty() || reset.back() != word) reset.push_back(word);
    marks_.erase({t.peer, t.flag});
    awaited_.insert({t.peer, t.flag});
  }
  for (int p = 0; p < self_.size; ++p) {
    if (p != self_.rank) reset.push_back(&words_.sent(p, lane));
  }
  reset_then_raise(stream, reset, {}, cuda_.ordinal);
}

PooledEvent Context::record(cudaStream_t stream) const {
  PooledEvent event(events_);
  check(cudaEventRecord(event.get(), stream), "cudaEventRecord", cuda_.ordinal);
  return event;
}

void Context::flush(cudaStream_t stream, std::uint32_t number) {
  if (aborted_) throw Error(ErrorCode::aborted, "the transport was aborted");
  if (number >= lanes_.size()) throw Error(ErrorCode::invalid_argument, fmt::format("there is no lane {}", number));
  Lane lane = std::exchange(lanes_[number], {});
  if (!lane.begun) throw Error(ErrorCode::invalid_usage, fmt::format("lane {}: nothing has begun", number));
  std::set<int> receivers;
  for (const tandem_transfer& t : lane.transfers) {
    if (t.direction == TANDEM_SEND) receivers.insert(t.peer);
  }
  const std::vector<Round> rounds = in_rounds(std::move(lane.transfers));
  if (rounds.empty()) return;
  const DeviceGuard guard(cuda_);
  lane.posted.push_back(record(stream));
  for (const PooledEvent& event : lane.posted)
    check(driver().cuStreamWaitEvent(stream_, event.get(), 0), "cuStreamWaitEvent", cuda_.ordinal);
  start(rounds, receivers, number);
}

void Context::start(std::span<const Round> rounds, const std::set<int>& receivers, std::uint32_t lane) {
  const unsigned long long capture = capture_of(stream_, cuda_.ordinal);
  for (const Round& round : rounds) {
    if (!round.transfers.empty()) communicator_->launch(round.transfers, stream_, Deadline::after(launch_patience));
    std::vector<const FlagWords::Word*> raise;
    for (const auto& [peer, flag] : round.arrivals) raise.push_back(&words_.arrival(peer, flag));
    if (&round == &rounds.back()) {
      for (const int p : receivers) raise.push_back(&words_.sent(p, lane));
    }
    reset_then_raise(stream_, {}, raise, cuda_.ordinal);
    if (capture == 0 && &round != &rounds.back()) continue;
    const auto mark = std::make_shared<const Mark>(Mark{record(stream_), capture});
    const std::lock_guard lock(mutex_);
    sent_mark_ = mark;
    if (capture == 0) continue;
    for (const PeerFlag& arrival : round.arrivals) marks_[arrival] = mark;
  }
}

/// Not if it is of another capture: that has no order with the stream but that of the graph as a whole.
bool Context::in_order(const Mark& mark, cudaStream_t stream) const {
  return mark.capture == capture_of(stream, cuda_.ordinal);
}

/// In the graph that the operation is part of, an edge says all, and ties this transport's stream into the capture. In
/// other captures, and in none, it is the word.
void Context::wait(cudaStream_t stream, int p, std::uint32_t flag) const {
  const DeviceGuard guard(cuda_);
  std::shared_ptr<const Mark> mark;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = marks_.find({p, flag}); it != marks_.end()) mark = it->second;
  }
  if (mark && in_order(*mark, stream)) {
    check(driver().cuStreamWaitEvent(stream, mark->event.get(), 0), "cuStreamWaitEvent", cuda_.ordinal);
  } else {
    detail::cuda::wait_raised(stream, words_.arrival(p, flag), cuda_.ordinal);
  }
}

void Context::wait_sent(cudaStream_t stream) const {
  const DeviceGuard guard(cuda_);
  std::shared_ptr<const Mark> mark;
  {
    const std::lock_guard lock(mutex_);
    mark = sent_mark_;
  }
  if (mark && in_order(*mark, stream))
    check(driver().cuStreamWaitEvent(stream, mark->event.get(), 0), "cuStreamWaitEvent", cuda_.ordinal);
}

bool Context::arrived(int p, std::uint32_t flag) const {
  return words_.arrival(p, flag).load(std::memory_order_acquire) != 0;
}

bool Context::sent(int p, std::uint32_t lane) const {
  return words_.sent(p, lane).load(std::memory_order_acquire) != 0;
}

}  // namespace tandem::nccl

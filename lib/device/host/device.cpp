// SPDX-License-Identifier: Apache-2.0
#include "device/host/device.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/machine.hpp"
#include "base/text.hpp"
#include "device/host/flag.hpp"
#include "tandem/trace.hpp"

namespace tandem::detail {
namespace {

constexpr std::size_t alignment = 256;

}  // namespace

HostDevice::HostDevice(const HostDeviceOptions& options) : options_(options) {
  if (options.queues < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device '{}': queues is {}; it must not be negative", options.name, options.queues));
  }
  folded_.resize(static_cast<std::size_t>(options.queues));
}

std::string HostDevice::describe() const {
  if (options_.queues == 0) return fmt::format("{} (host, a thread per stream)", options_.name);
  return fmt::format("{} (host, streams folded into {} queue{} and a copy queue)", options_.name, options_.queues,
                     options_.queues == 1 ? "" : "s");
}

std::shared_ptr<StreamImpl> HostDevice::create_stream(const StreamOptions& options) {
  auto state = std::make_shared<StreamState>();
  state->name = options.name;
  state->device_failure = failure_;
  return std::make_shared<HostStream>(shared_from_this(), queue_for(options), std::move(state));
}

std::shared_ptr<HostQueue> HostDevice::queue_for(const StreamOptions& options) {
  const std::lock_guard lock(mutex_);
  if (folded_.empty()) return make_queue(options.name);
  if (options.copy) {
    if (!copy_queue_) copy_queue_ = make_queue("copy " + options_.name);
    return copy_queue_;
  }
  const std::size_t index = streams_ % folded_.size();
  if (!folded_[index]) folded_[index] = make_queue(fmt::format("q{} {}", index, options_.name));
  ++streams_;
  return folded_[index];
}

std::shared_ptr<HostQueue> HostDevice::make_queue(const std::string& thread_name) const {
  return std::make_shared<HostQueue>(thread_name, live_);
}

std::shared_ptr<StreamImpl> HostDevice::wrap_stream(void* /*native*/, const std::string& name) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("stream '{}': device '{}' is the host's, which has no CUDA streams", name, options_.name));
}

std::shared_ptr<EventImpl> HostDevice::create_event() { return std::make_shared<HostEvent>(); }

std::shared_ptr<SignalImpl> HostDevice::create_signal() { return std::make_shared<HostFlag>(); }

void* HostDevice::take_memory(std::size_t bytes) const {
  if (bytes > machine_memory()) {
    throw Error(ErrorCode::out_of_memory, fmt::format("device '{}': {} wanted, the machine has {}", options_.name,
                                                      format_bytes(bytes), format_bytes(machine_memory())));
  }
  // At least one unit: buffers of 0 bytes have addresses of their own, too.
  const std::size_t rounded = bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("device '{}': cannot allocate {}", options_.name, format_bytes(bytes)));
  }
  if (options_.poison) std::memset(memory, 0xFF, rounded);
  return memory;
}

std::shared_ptr<void> HostDevice::allocate(std::size_t bytes) {
  void* const memory = take_memory(bytes);
  memory_->add(bytes);
  return {memory, [count = memory_, bytes](void* p) {
            std::free(p);
            count->remove(bytes);
          }};
}

std::shared_ptr<void> HostDevice::allocate_host(std::size_t bytes) { return {take_memory(bytes), std::free}; }

void HostDevice::synchronize(Deadline deadline) {
  // Streams whose handles are gone count until their work is done. And a task may give work to a queue that was seen
  // idle already: two rounds that find every queue idle and none given anything in between prove that all were idle at
  // once.
  using Totals = std::vector<std::pair<std::shared_ptr<QueueCore>, std::uint64_t>>;
  Totals before;
  while (true) {
    Totals totals;
    for (std::shared_ptr<QueueCore>& core : live_->all()) {
      const std::uint64_t total = core->wait_idle(deadline);
      totals.emplace_back(std::move(core), total);
    }
    if (totals == before) break;
    before = std::move(totals);
  }
  failure_->throw_if_failed();
}

std::uint64_t HostStream::next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

void HostStream::wait(EventImpl& event) {
  const auto* host_event = dynamic_cast<const HostEvent*>(&event);
  if (host_event == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                "stream '" + name() + "' of the host waits for an event of another device");
  }
  std::shared_ptr<HostFlag> flag = host_event->latest();
  if (!flag || flag->is_set()) return;
  push([flag = std::move(flag)] { wait_forever(*flag); });
}

void HostStream::record(EventImpl& event) {
  auto* host_event = dynamic_cast<HostEvent*>(&event);
  if (host_event == nullptr) {
    throw Error(ErrorCode::invalid_argument, "stream '" + name() + "' of the host records an event of another device");
  }
  auto flag = std::make_shared<HostFlag>();
  push([flag] { flag->set(); });
  host_event->set_latest(std::move(flag));
}

void HostStream::wait(std::shared_ptr<const SignalImpl> signal,
                      std::function<void(std::int64_t, std::int64_t)> on_wait) {
  push([signal = std::move(signal), on_wait = std::move(on_wait)] {
    const std::int64_t begin = now_ns();
    const bool stalled = !signal->is_set();
    wait_forever(*signal);
    if (on_wait) on_wait(begin, stalled ? now_ns() : begin);
  });
}

void HostStream::copy(void* destination, const void* source, std::size_t bytes) {
  push([=] {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  });
}

void HostStream::run(std::function<void()> task) {
  if (!task) throw Error(ErrorCode::invalid_argument, "stream '" + name() + "' was given an empty task");
  push(std::move(task));
}

std::shared_ptr<const MarkImpl> HostStream::leave_mark() {
  struct Mark final : MarkImpl {
    std::atomic<bool> set{false};
    bool reached() const noexcept override { return set.load(std::memory_order_acquire); }
  };
  auto mark = std::make_shared<Mark>();
  push([mark] { mark->set.store(true, std::memory_order_release); });
  return mark;
}

void HostStream::synchronize(Deadline deadline) {
  queue_->core().synchronize(*state_, deadline);
  state_->failure.throw_if_failed();
}

bool HostStream::idle() const { return queue_->core().idle(*state_); }

}  // namespace tandem::detail

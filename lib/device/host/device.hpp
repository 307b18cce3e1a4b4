// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/host/queue.hpp"
#include "device/impl.hpp"
#include "device/memory_count.hpp"

namespace tandem::detail {

class HostDevice final : public DeviceImpl, public std::enable_shared_from_this<HostDevice> {
 public:
  explicit HostDevice(const HostDeviceOptions& options);

  DeviceKind kind() const noexcept override { return DeviceKind::host; }
  std::string describe() const override;
  std::shared_ptr<StreamImpl> create_stream(const StreamOptions& options) override;
  std::shared_ptr<StreamImpl> wrap_stream(void* native, const std::string& name) override;
  std::shared_ptr<EventImpl> create_event() override;
  std::shared_ptr<SignalImpl> create_signal() override;
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  std::shared_ptr<void> allocate_host(std::size_t bytes) override;
  MemoryUse memory_use() const noexcept override { return memory_->use(); }
  void synchronize(Deadline deadline) override;

 private:
  std::shared_ptr<HostQueue> queue_for(const StreamOptions& options);
  std::shared_ptr<HostQueue> make_queue(const std::string& thread_name) const;
  /// Poisoned if the options say so; for std::free.
  void* take_memory(std::size_t bytes) const;

  const HostDeviceOptions options_;
  const std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();
  const std::shared_ptr<MemoryCount> memory_ = std::make_shared<MemoryCount>();  // outlived by no buffer
  const std::shared_ptr<LiveQueues> live_ = std::make_shared<LiveQueues>();
  std::mutex mutex_;
  // Folded: the device owns the queues, made when their first stream is. Free-threaded: each stream owns its own.
  std::vector<std::shared_ptr<HostQueue>> folded_;
  std::shared_ptr<HostQueue> copy_queue_;
  std::size_t streams_ = 0;  // copy streams do not count
};

class HostStream final : public StreamImpl {
 public:
  HostStream(std::shared_ptr<HostDevice> device, std::shared_ptr<HostQueue> queue, std::shared_ptr<StreamState> state)
      : device_(std::move(device)), queue_(std::move(queue)), state_(std::move(state)) {}

  DeviceImpl& device() const override { return *device_; }
  std::shared_ptr<DeviceImpl> device_handle() const override { return device_; }
  const std::string& name() const override { return state_->name; }
  std::uint64_t id() const noexcept override { return id_; }
  void wait(EventImpl& event) override;
  void record(EventImpl& event) override;
  void wait(std::shared_ptr<const SignalImpl> signal, std::function<void(std::int64_t, std::int64_t)> on_wait) override;
  void copy(void* destination, const void* source, std::size_t bytes) override;
  void run(std::function<void()> task) override;
  std::shared_ptr<const MarkImpl> leave_mark() override;
  void move_rows(const RowRuns& runs, std::span<const RowMove> moves, const std::shared_ptr<const void>& keep) override;
  void round_rows(const RowRuns& runs, const RowRounding& rounding, const std::shared_ptr<const void>& keep) override;
  void sum_rows(const RowSum& sum, const std::shared_ptr<const void>& keep) override;
  void synchronize(Deadline deadline) override;
  bool idle() const override;

 private:
  static std::uint64_t next_id() noexcept;
  void push(std::function<void()> task) { queue_->core().push(state_, std::move(task)); }

  // In this order: the queue goes before the device that may own it.
  std::shared_ptr<HostDevice> device_;
  std::shared_ptr<HostQueue> queue_;
  std::shared_ptr<StreamState> state_;
  const std::uint64_t id_ = next_id();
};

}  // namespace tandem::detail

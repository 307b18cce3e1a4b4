// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/context.hpp"
#include "device/cuda/event.hpp"
#include "device/cuda/host_task.hpp"
#include "device/impl.hpp"
#include "device/memory_count.hpp"

namespace tandem::detail::cuda {

class CudaStream;

class CudaDevice final : public DeviceImpl, public std::enable_shared_from_this<CudaDevice> {
 public:
  /// Loads all kernels that are registered.
  CudaDevice(int ordinal, const CudaDeviceOptions& options);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  DeviceKind kind() const noexcept override { return DeviceKind::cuda; }
  std::string describe() const override { return description_; }
  int cuda_ordinal() const noexcept override { return context_.ordinal; }
  std::shared_ptr<StreamImpl> create_stream(const StreamOptions& options) override;
  std::shared_ptr<StreamImpl> wrap_stream(void* native, const std::string& name) override;
  std::shared_ptr<EventImpl> create_event() override;
  std::shared_ptr<SignalImpl> create_signal() override;
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  bool poisons() const noexcept override { return poison_; }
  std::shared_ptr<void> allocate_host(std::size_t bytes) override;
  MemoryUse memory_use() const noexcept override { return memory_->use(); }
  void synchronize(Deadline deadline) override;

  const Context& context() const noexcept { return context_; }
  const std::shared_ptr<EventPool>& events() const noexcept { return events_; }

  // For streams, which tell the device what synchronize() has to cover.
  void add_stream(CudaStream* stream);
  void remove_stream(const CudaStream* stream) noexcept;
  /// Destroys the CUDA stream of `owner`, whose last handle is gone, and remembers what is still queued there.
  void retire_stream(cudaStream_t stream, const CudaStream* owner);

 private:
  std::shared_ptr<TaskOwner> task_owner(const std::string& name) const;
  void fill(void* memory, std::size_t bytes);
  void forget_done_streams();  // with the mutex held

  const Context context_;
  const bool poison_;
  const std::string description_;
  const std::shared_ptr<EventPool> events_;
  const std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();
  const std::shared_ptr<MemoryCount> memory_ = std::make_shared<MemoryCount>();
  std::mutex mutex_;
  std::vector<CudaStream*> streams_;  // that have handles
  std::vector<PooledEvent> retired_;  // the last work of those that have none
  cudaStream_t fill_stream_ = nullptr;
};

}  // namespace tandem::detail::cuda

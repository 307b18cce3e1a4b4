// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "device/cuda/event.hpp"
#include "device/cuda/host_task.hpp"
#include "device/impl.hpp"

namespace tandem::detail::cuda {

class CudaDevice;

class CudaStream final : public StreamImpl {
 public:
  /// `owned`: the CUDA stream is destroyed with this, which lets queued work run.
  CudaStream(std::shared_ptr<CudaDevice> device, cudaStream_t stream, bool owned, std::shared_ptr<TaskOwner> owner);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  DeviceImpl& device() const override;
  std::shared_ptr<DeviceImpl> device_handle() const override;
  const std::string& name() const override { return owner_->stream; }
  std::uint64_t id() const noexcept override { return id_; }
  void wait(EventImpl& event) override;
  void record(EventImpl& event) override;
  /// Costs one stream memory operation. With `on_wait` there are two host functions more, which hold the stream up for
  /// some microseconds each: the price of a trace.
  void wait(std::shared_ptr<const SignalImpl> signal, std::function<void(std::int64_t, std::int64_t)> on_wait) override;
  void copy(void* destination, const void* source, std::size_t bytes) override;
  void run(std::function<void()> task) override;
  std::shared_ptr<const MarkImpl> leave_mark() override;
  std::uint64_t capture() const override;
  void move_rows(const RowRuns& runs, std::span<const RowMove> moves, const std::shared_ptr<const void>& keep) override;
  void round_rows(const RowRuns& runs, const RowRounding& rounding, const std::shared_ptr<const void>& keep) override;
  void sum_rows(const RowSum& sum, const std::shared_ptr<const void>& keep) override;
  void synchronize(Deadline deadline) override;
  bool idle() const override;
  void* native() const noexcept override { return stream_; }

  cudaStream_t get() const noexcept { return stream_; }
  const Context& context() const noexcept;
  /// An event behind the work given so far, for the host to poll. Throws invalid_usage if the stream is being captured,
  /// which a query would spoil. The device must be current.
  PooledEvent mark() const;

 private:
  void launch(std::function<void()> task);

  const std::shared_ptr<CudaDevice> device_;
  const cudaStream_t stream_;
  const bool owned_;
  const std::shared_ptr<TaskOwner> owner_;
  const std::uint64_t id_;
};

}  // namespace tandem::detail::cuda

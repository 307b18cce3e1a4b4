// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "device/cuda/check.hpp"
#include "device/cuda/native.hpp"
#include "tandem/bench/cuda_kernels.hpp"
#include "tandem/bench/cuda_parts.hpp"

namespace tandem::cli {
namespace {

using detail::cuda::DeviceGuard;
using detail::cuda::native_stream;
using detail::cuda::NativeStream;

class CudaData final : public BenchData {
 public:
  explicit CudaData(const Device& device) : wrong_(device.allocate(sizeof(unsigned long long))) {
    const Stream stream = device.create_stream({.name = "bench-data"});
    with(stream, [&](cudaStream_t s) { return cudaMemsetAsync(wrong_.data(), 0, wrong_.bytes(), s); });
    stream.synchronize(Deadline::after(std::chrono::seconds(10)));
  }

  void fill(const Stream& stream, void* to, std::uint64_t bytes, std::uint64_t first, std::uint64_t salt) override {
    launch(stream, [&](cudaStream_t s) { kernels::fill(s, to, bytes, first, salt); });
  }
  void fill_terms(const Stream& stream, float* to, std::uint64_t count, std::uint64_t first, int rank,
                  std::uint64_t salt) override {
    launch(stream, [&](cudaStream_t s) { kernels::fill_terms(s, to, count, first, rank, salt); });
  }
  void poison(const Stream& stream, void* to, std::uint64_t bytes) override {
    with(stream, [&](cudaStream_t s) { return cudaMemsetAsync(to, 0xFF, static_cast<std::size_t>(bytes), s); });
  }
  void check(const Stream& stream, const void* found, std::uint64_t bytes, std::uint64_t first,
             std::uint64_t salt) override {
    launch(stream, [&](cudaStream_t s) { kernels::check(s, found, bytes, first, salt, counter()); });
  }
  void check_sums(const Stream& stream, const float* found, std::uint64_t count, std::uint64_t first, int first_rank,
                  int ranks, std::uint64_t salt) override {
    launch(stream,
           [&](cudaStream_t s) { kernels::check_sums(s, found, count, first, first_rank, ranks, salt, counter()); });
  }
  std::uint64_t take_wrong(const Stream& stream, Deadline deadline) override {
    std::uint64_t count = 0;
    stream.synchronize(deadline);
    stream.copy(&count, wrong_.data(), sizeof(count));
    with(stream, [&](cudaStream_t s) { return cudaMemsetAsync(wrong_.data(), 0, wrong_.bytes(), s); });
    stream.synchronize(deadline);
    return count;
  }

 private:
  template <class Call>
  static void with(const Stream& stream, const Call& call) {
    const NativeStream native = native_stream(stream);
    const DeviceGuard guard(native.context);
    detail::cuda::check(call(native.handle), "cudaMemsetAsync", native.context.ordinal);
  }
  template <class Launch>
  static void launch(const Stream& stream, const Launch& kernel) {
    const NativeStream native = native_stream(stream);
    const DeviceGuard guard(native.context);
    kernel(native.handle);
    detail::cuda::check(cudaGetLastError(), "a kernel's launch", native.context.ordinal);
  }
  unsigned long long* counter() const { return static_cast<unsigned long long*>(wrong_.data()); }

  const Buffer wrong_;
};

}  // namespace

std::unique_ptr<BenchData> make_cuda_data(const Device& device) { return std::make_unique<CudaData>(device); }

}  // namespace tandem::cli

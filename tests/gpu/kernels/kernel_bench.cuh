// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernel_program.hpp"

/// What checks and measurements of kernels share: device memory, random numbers, times.
namespace tandem::test {

#define CUDA_OK(call)                                                                        \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(2);                                                                          \
    }                                                                                        \
  } while (false)

/// Device memory with a red zone of 256 bytes behind it.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count = 0) : count_(count) {
    CUDA_OK(cudaMalloc(&data_, bytes() + zone));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { set(host); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void poison() { CUDA_OK(cudaMemset(data_, 0xAB, bytes() + zone)); }
  void set(const std::vector<T>& host) { CUDA_OK(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice)); }
  std::vector<T> get() const {
    std::vector<T> host(count_);
    CUDA_OK(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return host;
  }
  bool red_zone_intact() const {
    std::vector<std::uint8_t> tail(zone);
    CUDA_OK(
        cudaMemcpy(tail.data(), reinterpret_cast<const std::uint8_t*>(data_) + bytes(), zone, cudaMemcpyDeviceToHost));
    return std::all_of(tail.begin(), tail.end(), [](std::uint8_t b) { return b == 0xAB; });
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  static constexpr std::size_t zone = 256;
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// splitmix64: one independent number for each (seed, index), on either side.
__host__ __device__ inline std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15ULL + index * 0xD1B54A32D192ED03ULL + 0x632BE59BD9B4E019ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}
/// About normal: the sum of four uniform numbers.
__host__ __device__ inline float normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = mix(seed, index);
  float sum = 0.0F;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xFFFF) / 65536.0F - 0.5F;
  return sum * 1.7320508F;
}

/// Calls body(i) for i below `count`, on all cores.
inline void parallel(std::size_t count, const std::function<void(std::size_t)>& body) {
  const std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> pool;
  for (std::size_t t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      for (std::size_t i = t; i < count; i += threads) body(i);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

struct Times {
  double median, low, high;  ///< ms
};
/// Of `runs` launches one by one, after three that do not count.
inline Times time_launches(const std::function<void()>& launch, int runs) {
  cudaEvent_t from, to;
  CUDA_OK(cudaEventCreate(&from));
  CUDA_OK(cudaEventCreate(&to));
  std::vector<double> times;
  for (int i = -3; i < runs; ++i) {
    CUDA_OK(cudaEventRecord(from));
    launch();
    CUDA_OK(cudaEventRecord(to));
    CUDA_OK(cudaEventSynchronize(to));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, from, to));
    if (i >= 0) times.push_back(static_cast<double>(ms));
  }
  CUDA_OK(cudaEventDestroy(from));
  CUDA_OK(cudaEventDestroy(to));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

inline std::string device_name() {
  cudaDeviceProp device{};
  CUDA_OK(cudaGetDeviceProperties(&device, 0));
  return device.name;
}

}  // namespace tandem::test

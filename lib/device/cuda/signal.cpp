// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/signal.hpp"

#include <cuda_runtime_api.h>

#include <new>

#include "device/cuda/check.hpp"

namespace tandem::detail::cuda {
namespace {

constexpr std::size_t line_bytes = 64;
constexpr std::size_t words_at_once = 1024;

struct alignas(line_bytes) Line {
  std::atomic<std::uint32_t> value{0};
};
static_assert(sizeof(Line) == line_bytes && sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace

SignalWords& SignalWords::instance() {
  // Not destroyed: signals may go after static objects.
  static auto* const words = new SignalWords;
  return *words;
}

void SignalWords::reserve(const Context& context, std::size_t count) {
  const std::lock_guard lock(mutex_);
  while (free_.size() < count) grow(context);
}

SignalWord SignalWords::take(const Context& context) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) grow(context);
  std::atomic<std::uint32_t>* const value = free_.back();
  free_.pop_back();
  return {value, value->load(std::memory_order_relaxed) + 1};
}

void SignalWords::give(SignalWord word) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(word.value);
}

void SignalWords::grow(const Context& context) {
  const DeviceGuard guard(context);
  const RelaxedCapture relaxed;
  free_.reserve(made_ + words_at_once);
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, words_at_once * line_bytes, cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc", context.ordinal);
  auto* const lines = static_cast<Line*>(memory);
  for (std::size_t i = 0; i < words_at_once; ++i) free_.push_back(&(new (lines + i) Line)->value);
  made_ += words_at_once;
}

CudaSignal::~CudaSignal() {
  set();
  SignalWords::instance().give(word_);
}

void CudaSignal::set() noexcept {
  // Streams first. Release: what this thread wrote before is in memory when the GPU sees the target.
  word_.value->store(word_.target, std::memory_order_release);
  flag_.set();
}

CudaMark::~CudaMark() {
  if (reached()) SignalWords::instance().give(word_);
}

bool CudaMark::reached() const noexcept {
  return static_cast<std::int32_t>(word_.value->load(std::memory_order_acquire) - word_.target) >= 0;
}

}  // namespace tandem::detail::cuda

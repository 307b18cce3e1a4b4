// SPDX-License-Identifier: Apache-2.0
#include "transports/nccl/flag_words.hpp"

#include <cuda_runtime_api.h>

#include <new>

#include "device/cuda/check.hpp"

namespace tandem::nccl {

using detail::cuda::check;
using detail::cuda::check_quietly;

FlagWords::FlagWords(int ranks, const detail::cuda::Context& context)
    : context_(context), count_(static_cast<std::size_t>(ranks) * words_per_rank) {
  const detail::cuda::DeviceGuard guard(context_);
  const detail::cuda::RelaxedCapture relaxed;
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, count_ * sizeof(Word), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc",
        context_.ordinal);
  words_ = static_cast<Word*>(memory);
  for (std::size_t i = 0; i < count_; ++i) new (words_ + i) Word(0);
}

FlagWords::~FlagWords() {
  if (abandoned_) return;
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (!guard) return;
  const detail::cuda::RelaxedCapture relaxed;
  check_quietly(cudaFreeHost(words_), "cudaFreeHost", context_.ordinal);
}

void FlagWords::raise_all() const noexcept {
  for (std::size_t i = 0; i < count_; ++i) words_[i].store(1, std::memory_order_release);
}

}  // namespace tandem::nccl

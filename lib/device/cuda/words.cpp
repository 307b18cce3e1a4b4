// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/words.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"

namespace tandem::detail::cuda {

namespace {

constexpr std::size_t most_at_once = 255;  // operations of one batch that CUDA takes

CUdeviceptr address_of(const Word& word) { return reinterpret_cast<CUdeviceptr>(&word); }

CUstreamBatchMemOpParams write(const Word& word, std::uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = address_of(word);
  op.writeValue.value = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // what the stream wrote before is visible first
  return op;
}

}  // namespace

void wait_raised(cudaStream_t stream, const Word& word, int ordinal) {
  check(driver().cuStreamWaitValue32(stream, address_of(word), 1, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32",
        ordinal);
}

void reset_then_raise(cudaStream_t stream, std::span<const Word* const> reset, std::span<const Word* const> raise,
                      int ordinal) {
  std::vector<CUstreamBatchMemOpParams> ops;
  ops.reserve(reset.size() + raise.size());
  for (const Word* word : reset) ops.push_back(write(*word, 0));
  for (const Word* word : raise) ops.push_back(write(*word, 1));
  for (std::size_t i = 0; i < ops.size(); i += most_at_once) {
    const auto count = static_cast<unsigned>(std::min(most_at_once, ops.size() - i));
    check(driver().cuStreamBatchMemOp(stream, count, &ops[i], 0), "cuStreamBatchMemOp", ordinal);
  }
}

unsigned long long capture_of(cudaStream_t stream, int ordinal) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo", ordinal);
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

}  // namespace tandem::detail::cuda

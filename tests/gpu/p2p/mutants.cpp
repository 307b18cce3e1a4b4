// SPDX-License-Identifier: Apache-2.0
#include "gpu/p2p/mutants.hpp"

#include <vector>

#include "device/cuda/driver.hpp"

namespace tandem::testing_p2p {
namespace {

using detail::cuda::Driver;

Driver real;
Step left_out = Step::none;
CUstream own_stream = nullptr;

// The first stream of the only pusher there is: it waits for sources before anything else does.
CUstream pushing = nullptr;

CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  if (stream != own_stream && pushing == nullptr) pushing = stream;
  Step step = Step::begun_wait;
  if (stream == own_stream) step = Step::sent_wait;
  if (stream == pushing) step = Step::source_wait;
  return step == left_out ? CUDA_SUCCESS : real.cuStreamWaitEvent(stream, event, flags);
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return left_out == Step::arrival_wait ? CUDA_SUCCESS : real.cuStreamWaitValue32(stream, address, value, flags);
}

Step step_of(CUstream stream, const CUstreamBatchMemOpParams& op) {
  if (op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32) return Step::ready_wait;
  if (op.writeValue.value != 0) return Step::none;
  return stream == own_stream ? Step::arrival_reset : Step::ready_reset;
}

CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* ops, unsigned flags) {
  std::vector<CUstreamBatchMemOpParams> kept;
  for (unsigned i = 0; i < count; ++i) {
    const Step step = step_of(stream, ops[i]);
    if (step == Step::none || step != left_out) kept.push_back(ops[i]);
  }
  if (kept.empty()) return CUDA_SUCCESS;
  return real.cuStreamBatchMemOp(stream, static_cast<unsigned>(kept.size()), kept.data(), flags);
}

}  // namespace

std::string_view to_string(Step step) {
  switch (step) {
    case Step::none:
      return "nothing";
    case Step::arrival_wait:
      return "arrival_wait";
    case Step::ready_wait:
      return "ready_wait";
    case Step::ready_reset:
      return "ready_reset";
    case Step::arrival_reset:
      return "arrival_reset";
    case Step::source_wait:
      return "source_wait";
    case Step::begun_wait:
      return "begun_wait";
    case Step::sent_wait:
      return "sent_wait";
  }
  return "?";
}

void leave_out(Step step, const void* own) {
  Driver& table = detail::cuda::replaceable_driver();
  real = table;
  left_out = step;
  own_stream = static_cast<CUstream>(const_cast<void*>(own));
  table.cuStreamWaitEvent = &wait_event;
  table.cuStreamWaitValue32 = &wait_value;
  table.cuStreamBatchMemOp = &batch;
}

}  // namespace tandem::testing_p2p

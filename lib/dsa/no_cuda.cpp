// SPDX-License-Identifier: Apache-2.0
// Stands in for cuda/ in builds without CUDA code, where there is no stream of a GPU to call it with.
#include "dsa/cuda/lists.hpp"

namespace tandem::detail::cuda {
namespace {

[[noreturn]] void refuse() { throw Error(ErrorCode::unsupported, "this build has no CUDA code"); }

}  // namespace

void to_landed_lists(const Stream& /*stream*/, const Tensor& /*bounds*/, const Tensor& /*shift*/,
                     const Tensor& /*global*/, const Tensor& /*indices*/, const Tensor& /*length*/) {
  refuse();
}
void to_global_lists(const Stream& /*stream*/, const Tensor& /*shift*/, const Tensor& /*indices*/,
                     const Tensor& /*length*/, const Tensor& /*global*/) {
  refuse();
}
void zero(const Stream& /*stream*/, void* /*memory*/, std::size_t /*bytes*/) { refuse(); }

}  // namespace tandem::detail::cuda

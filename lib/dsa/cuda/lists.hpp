// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tandem/device.hpp"
#include "tandem/tensor.hpp"

/// What the pipeline does itself on a GPU, between the calls of kernels. Each call enqueues one operation, which can be
/// captured. `bounds` and `shift` are those of PlanTables. Builds without CUDA code have no callers.
namespace tandem::detail::cuda {

/// Lists of the caller are sorted in a block's shared memory.
constexpr std::int64_t most_given_topk = 8192;

/// As detail::to_landed_lists; K is at most most_given_topk.
void to_landed_lists(const Stream& stream, const Tensor& bounds, const Tensor& shift, const Tensor& global,
                     const Tensor& indices, const Tensor& length);
/// As detail::to_global_lists.
void to_global_lists(const Stream& stream, const Tensor& shift, const Tensor& indices, const Tensor& length,
                     const Tensor& global);
void zero(const Stream& stream, void* memory, std::size_t bytes);

}  // namespace tandem::detail::cuda

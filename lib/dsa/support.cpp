// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "dsa/attention_impl.hpp"
#include "dsa/cuda/lists.hpp"

namespace tandem::detail {

KeepAlive::~KeepAlive() {
  try {
    if (stream_.device().kind() == DeviceKind::cuda) return;
    stream_.run([plan = plan_, things = std::move(things_)] {});
  } catch (const std::exception&) {
    // Only memory is short enough to end here, and then what was enqueued is not past it either: keep it for good.
    new std::vector<std::shared_ptr<const void>>(std::move(things_));
  }
}

void to_landed_lists(const Plan& plan, const Tensor& global, const Tensor& indices, const Tensor& length) {
  const std::int64_t k = indices.size(1);
  std::vector<std::int32_t> list;
  for (std::int64_t t = 0; t < plan.rows(); ++t) {
    const std::int32_t* in = global.data_as<std::int32_t>() + t * global.stride(0);
    const std::int64_t begin = plan.key_begin()[static_cast<std::size_t>(t)];
    const std::int64_t end = plan.key_end()[static_cast<std::size_t>(t)];
    list.clear();
    for (std::int64_t i = 0; i < k; ++i) {
      const bool in_stream = in[i] >= 0 && in[i] < plan.layout().total_rows();
      const std::int64_t landed = in_stream ? plan.to_landed(in[i]) : -1;
      if (landed >= begin && landed < end) list.push_back(static_cast<std::int32_t>(landed));
    }
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    std::int32_t* out = indices.data_as<std::int32_t>() + t * indices.stride(0);
    std::copy(list.begin(), list.end(), out);
    std::fill(out + list.size(), out + k, -1);
    length.data_as<std::int32_t>()[t] = static_cast<std::int32_t>(list.size());
  }
}

void to_global_lists(const Plan& plan, const Tensor& indices, const Tensor& length, const Tensor& global) {
  const std::int64_t k = indices.size(1);
  for (std::int64_t t = 0; t < plan.rows(); ++t) {
    const std::int32_t* in = indices.data_as<std::int32_t>() + t * indices.stride(0);
    std::int32_t* out = global.data_as<std::int32_t>() + t * global.stride(0);
    const std::int32_t n = length.data_as<std::int32_t>()[t];
    if (n > 0) {
      // A row's landed keys are one stretch of its document, so that one conversion serves all.
      const std::int64_t shift = plan.to_global(in[0]) - in[0];
      for (std::int32_t i = 0; i < n; ++i) out[i] = static_cast<std::int32_t>(in[i] + shift);
    }
    std::fill(out + n, out + k, -1);
  }
}

void check_tensor(const char* name, const Tensor& tensor, DType dtype, std::initializer_list<std::int64_t> shape) {
  bool fits = tensor.valid() && tensor.dtype() == dtype && tensor.dims() == static_cast<int>(shape.size());
  int dim = 0;
  for (const std::int64_t extent : shape) fits = fits && tensor.size(dim++) == extent;
  if (fits && tensor.rows_dense()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: expected {} {} with dense rows, got {}", name, to_string(dtype),
                          std::vector<std::int64_t>(shape), tensor.valid() ? tensor.describe() : "no tensor"));
}

void zero_on(const Stream& stream, const Tensor& tensor) {
  const std::size_t bytes = static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype());
  if (stream.device().kind() == DeviceKind::cuda) {
    cuda::zero(stream, tensor.data(), bytes);
    return;
  }
  stream.run([tensor, bytes] {
    if (bytes > 0) std::memset(tensor.data(), 0, bytes);
  });
}

void zero_silent_rows(const Stream& stream, const Plan& plan, std::initializer_list<Tensor> tensors) {
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    for (const Tensor& tensor : tensors) {
      if (tensor.valid()) zero_on(stream, tensor.rows(begin, end - begin));
    }
  };
  std::int64_t end = plan.rows();
  for (const RowRange& block : plan.query_blocks()) {
    zero(block.end, end);
    end = block.begin;
  }
  zero(0, end);
}

}  // namespace tandem::detail

namespace tandem {

const detail::PlanTables& DsaAttention::Impl::tables_of(const Plan& plan) const {
  const auto it = tables.find(plan.hash());
  if (it != tables.end()) return it->second;
  throw Error(ErrorCode::invalid_usage, fmt::format("this plan was not prepared: {}", plan.layout().describe()),
              comm->rank());
}

void DsaAttention::Impl::to_landed(const Plan& plan, const Tensor& global, const Tensor& indices, const Tensor& length,
                                   const Stream& stream) const {
  if (on_gpu()) {
    const detail::PlanTables& t = tables_of(plan);
    detail::cuda::to_landed_lists(stream, t.bounds, t.shift, global, indices, length);
    return;
  }
  stream.run([=] { detail::to_landed_lists(plan, global, indices, length); });
}

void DsaAttention::Impl::to_global(const Plan& plan, const Tensor& indices, const Tensor& length, const Tensor& global,
                                   const Stream& stream) const {
  if (on_gpu()) {
    detail::cuda::to_global_lists(stream, tables_of(plan).shift, indices, length, global);
    return;
  }
  stream.run([=] { detail::to_global_lists(plan, indices, length, global); });
}

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include "comparison.hpp"

#include <cmath>
#include <limits>

#include "device/bf16.hpp"
#include "device/e4m3.hpp"

namespace tandem::cli {
namespace {

using reference::RelativeError;

void add_row(RelativeError& error, const Tensor& got, std::int64_t row, const double* want) {
  for (const double value : decode_row(got, row)) error.add(value, *want++);
}

}  // namespace

void Comparison::add_rows(std::span<const std::int64_t> positions, const ReferenceRows& want) {
  const DsaOutputs& o = results_.outputs;
  const DsaGradients& g = results_.gradients;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int64_t row = positions[i];
    const auto part = [i](std::span<const double> all, const Tensor& t) {
      return all.data() + i * static_cast<std::size_t>(t.row_elements());
    };
    add_row(out_, o.out, row, part(want.out, o.out));
    add_row(lse_, o.lse, row, part(want.lse, o.lse));
    add_row(dq_, g.dq, row, part(want.dq, g.dq));
    add_row(d_index_q_, g.d_index_q, row, part(want.d_index_q, g.d_index_q));
    add_row(d_index_w_, g.d_index_w, row, part(want.d_index_w, g.d_index_w));
    loss_difference_ += o.loss.data_as<double>()[row] - want.loss[i];
    loss_magnitude_ += want.loss_magnitude[i];
  }
}

void Comparison::add_keys(RowRange keys, std::span<const double> dkv, std::span<const double> d_index_k) {
  const DsaGradients& g = results_.gradients;
  for (std::int64_t row = keys.begin; row < keys.end; ++row) {
    add_row(dkv_, g.dkv, row, dkv.data() + row * g.dkv.row_elements());
    add_row(d_index_k_, g.d_index_k, row, d_index_k.data() + row * g.d_index_k.row_elements());
  }
}

std::vector<Comparison::Named> Comparison::errors() const {
  double loss = std::fabs(loss_difference_) / (loss_magnitude_ < RelativeError::nearly_zero ? 1.0 : loss_magnitude_);
  if (!std::isfinite(loss)) loss = std::numeric_limits<double>::infinity();
  return {{"out", out_.value()},
          {"lse", lse_.value()},
          {"dq", dq_.value()},
          {"dkv", dkv_.value()},
          {"d_index_q", d_index_q_.value()},
          {"d_index_k", d_index_k_.value()},
          {"d_index_w", d_index_w_.value()},
          {"loss", loss}};
}

std::vector<double> decode_row(const Tensor& tensor, std::int64_t row) {
  const auto count = tensor.dims() == 1 ? std::size_t{1} : static_cast<std::size_t>(tensor.row_elements());
  const std::size_t begin = static_cast<std::size_t>(row) * count;
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (tensor.dtype()) {
      case DType::bf16:
        values[i] = static_cast<double>(detail::bf16_to_float(tensor.data_as<std::uint16_t>()[begin + i]));
        break;
      case DType::f8e4m3:
        values[i] = static_cast<double>(detail::e4m3_to_float(tensor.data_as<std::uint8_t>()[begin + i]));
        break;
      case DType::f64:
        values[i] = tensor.data_as<double>()[begin + i];
        break;
      default:
        values[i] = static_cast<double>(tensor.data_as<float>()[begin + i]);
    }
  }
  return values;
}

}  // namespace tandem::cli

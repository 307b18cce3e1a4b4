// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/bf16.hpp"
#include "device/e4m3.hpp"
#include "kernels/cpu/micro.hpp"
#include "tandem/tensor.hpp"

namespace tandem::detail::cpu {

/// Address of entry [i] (or [i, j]) of a tensor of T.
template <class T>
T* entry(const Tensor& t, std::int64_t i) {
  return t.data_as<T>() + i * t.stride(0);
}
template <class T>
T* entry(const Tensor& t, std::int64_t i, std::int64_t j) {
  return t.data_as<T>() + i * t.stride(0) + j * t.stride(1);
}

/// Reads rows of a bf16, f8e4m3 or f32 tensor as f32: in place if they are that already, else widened into `scratch`.
class RowReader {
 public:
  RowReader(const Micro& micro, const Tensor& tensor) : micro_(&micro), tensor_(tensor), dtype_(tensor.dtype()) {}

  bool in_place() const { return dtype_ == DType::f32; }
  const float* row(std::int64_t i, float* scratch) const { return read(tensor_.stride(0) * i, scratch); }
  const float* row(std::int64_t i, std::int64_t j, float* scratch) const {
    return read(tensor_.stride(0) * i + tensor_.stride(1) * j, scratch);
  }
  void copy_row(std::int64_t i, std::int64_t j, float* to) const {
    const float* from = row(i, j, to);
    if (from != to) std::copy_n(from, width(), to);
  }
  /// All rows [i, 0..n) of a three-dimensional tensor, as addresses; scratch holds n rows.
  void rows(std::int64_t i, float* scratch, const float** to) const {
    for (std::int64_t j = 0; j < tensor_.size(1); ++j) to[j] = row(i, j, scratch + j * width());
  }
  std::int64_t width() const { return tensor_.size(tensor_.dims() - 1); }

 private:
  const float* read(std::int64_t offset, float* scratch) const {
    if (in_place()) return tensor_.data_as<float>() + offset;
    if (dtype_ == DType::bf16) {
      micro_->widen(tensor_.data_as<std::uint16_t>() + offset, width(), scratch);
    } else {
      std::transform(tensor_.data_as<std::uint8_t>() + offset, tensor_.data_as<std::uint8_t>() + offset + width(),
                     scratch, e4m3_to_float);
    }
    return scratch;
  }

  const Micro* micro_;
  Tensor tensor_;
  DType dtype_;
};

/// Writes f32 values as row [i, j] of a bf16 or f32 tensor.
inline void write_row(const Tensor& tensor, std::int64_t i, std::int64_t j, const float* values) {
  const std::int64_t width = tensor.size(2);
  if (tensor.dtype() == DType::f32) {
    std::copy_n(values, width, entry<float>(tensor, i, j));
    return;
  }
  std::uint16_t* to = entry<std::uint16_t>(tensor, i, j);
  for (std::int64_t c = 0; c < width; ++c) to[c] = bf16_from_float(values[c]);
}

/// Scratch that grows and is never shrunk or cleared.
class Scratch {
 public:
  float* floats(std::int64_t count) {
    if (static_cast<std::int64_t>(memory_.size()) < count) memory_.resize(static_cast<std::size_t>(count));
    return memory_.data();
  }

 private:
  std::vector<float> memory_;
};

/// Landed rows of one tile as f32.
class KeyTile {
 public:
  KeyTile(const Micro& micro, const Tensor& keys) : reader_(micro, keys) {}

  /// Addresses of rows keys[0..count), good until the next load.
  const float* const* load(const std::int32_t* keys, std::int64_t count) {
    rows_.resize(static_cast<std::size_t>(count));
    float* scratch = reader_.in_place() ? nullptr : scratch_.floats(count * reader_.width());
    for (std::int64_t i = 0; i < count; ++i) {
      float* place = scratch == nullptr ? nullptr : scratch + i * reader_.width();
      rows_[static_cast<std::size_t>(i)] = reader_.row(keys[i], place);
    }
    return rows_.data();
  }
  const float* const* rows() const { return rows_.data(); }

 private:
  RowReader reader_;
  Scratch scratch_;
  std::vector<const float*> rows_;
};

}  // namespace tandem::detail::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "tandem/device.hpp"
#include "tandem/tensor.hpp"

namespace tandem::cli {

/// Threads that a benchmark makes its inputs with.
int fill_threads();
/// Runs `work(i)` for i in [0, count) on them. It must not throw.
void in_threads(std::int64_t count, const std::function<void(std::int64_t)>& work);

/// Makes tensors in the memory of a device, row by row, from numbers of the host. Blocks.
class RowFiller {
 public:
  explicit RowFiller(const Device& device);

  /// `row(i, values)` writes the numbers of row i; any thread may call it.
  Tensor make(DType dtype, std::initializer_list<std::int64_t> shape,
              const std::function<void(std::int64_t, float*)>& row) const;
  Tensor make(std::initializer_list<std::int64_t> shape,
              const std::function<void(std::int64_t, std::int32_t*)>& row) const;
  /// i32 [values.size() / columns, columns], or [values.size()] if `columns` is 1.
  Tensor table(const std::vector<std::int32_t>& values, std::int64_t columns) const;
  /// A dense copy in memory of the host, of rows [begin, begin + count).
  Tensor fetch(const Tensor& tensor, std::int64_t begin, std::int64_t count) const;
  Tensor fetch(const Tensor& tensor) const { return fetch(tensor, 0, tensor.size(0)); }
  /// Of some rows, one after another.
  Tensor fetch(const Tensor& tensor, const std::vector<std::int64_t>& rows) const;
  /// A dense copy on the device.
  Tensor copy(const Tensor& tensor) const;
  const Device& device() const noexcept { return device_; }

 private:
  void stage(const Tensor& to, const std::function<void(std::int64_t, std::byte*)>& row) const;
  void synchronize() const;

  Device device_;
  Stream stream_;
};

}  // namespace tandem::cli

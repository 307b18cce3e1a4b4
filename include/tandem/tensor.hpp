// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "tandem/device.hpp"

namespace tandem {

enum class DType { f32, f64, bf16, f8e4m3, i32, i64, u8 };
TANDEM_EXPORT std::size_t size_of(DType dtype) noexcept;
TANDEM_EXPORT const char* to_string(DType dtype) noexcept;

/// A view of up to four dimensions over device memory, with an optional share in its owner. The last dimension is
/// dense; strides count elements. A small value.
class TANDEM_EXPORT Tensor {
 public:
  static constexpr int max_dims = 4;

  Tensor() = default;
  /// A view of memory the caller keeps alive. Without `strides` the view is dense. Throws invalid_argument on a
  /// negative extent, more than four dimensions, or a last stride other than 1.
  static Tensor from_raw(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                         std::initializer_list<std::int64_t> strides = {});
  /// Dense memory of its own, contents undefined.
  static Tensor allocate(const Device& device, DType dtype, std::initializer_list<std::int64_t> shape);
  /// A dense view into `buffer` from `byte_offset` on; shares its ownership. Throws invalid_argument if it does not
  /// fit.
  static Tensor view(const Buffer& buffer, std::size_t byte_offset, DType dtype,
                     std::initializer_list<std::int64_t> shape);

  bool valid() const noexcept { return dims_ > 0; }
  void* data() const noexcept { return data_; }
  template <class T>
  T* data_as() const noexcept {
    return static_cast<T*>(data_);
  }
  DType dtype() const noexcept { return dtype_; }
  int dims() const noexcept { return dims_; }
  std::int64_t size(int dim) const noexcept { return shape_[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const noexcept { return strides_[static_cast<std::size_t>(dim)]; }
  std::int64_t elements() const noexcept;
  /// Elements in one entry of the first dimension.
  std::int64_t row_elements() const noexcept;
  std::size_t row_bytes() const noexcept { return static_cast<std::size_t>(row_elements()) * size_of(dtype_); }
  /// Bytes from one entry of the first dimension to the next.
  std::size_t row_stride_bytes() const noexcept { return static_cast<std::size_t>(stride(0)) * size_of(dtype_); }
  /// True if each entry of the first dimension is one dense run (entries themselves may be apart).
  bool rows_dense() const noexcept;
  /// Entries [begin, begin + count) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  /// "bf16 [128, 4, 576]", for messages.
  std::string describe() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  int dims_ = 0;
  std::array<std::int64_t, max_dims> shape_{};
  std::array<std::int64_t, max_dims> strides_{};
  std::shared_ptr<void> owner_;
};

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include "tandem/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace tandem {
namespace {

using Extents = std::initializer_list<std::int64_t>;

std::string describe_shape(DType dtype, const std::int64_t* begin, std::size_t dims) {
  return fmt::format("{} [{}]", to_string(dtype), fmt::join(begin, begin + dims, ", "));
}

[[noreturn]] void reject(DType dtype, Extents shape, const std::string& reason) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("tensor {}: {}", describe_shape(dtype, shape.begin(), shape.size()), reason));
}

// Bytes of a dense tensor. Extents of 0 count as 1 in the overflow check, so that rows of an empty tensor have a size,
// too.
std::int64_t checked_bytes(DType dtype, Extents shape) {
  if (shape.size() == 0) reject(dtype, shape, "it needs at least one dimension");
  if (shape.size() > Tensor::max_dims) reject(dtype, shape, fmt::format("more than {} dimensions", Tensor::max_dims));
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) reject(dtype, shape, fmt::format("extent {} is negative", extent));
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, extent == 0 ? 1 : extent, &bytes))
      reject(dtype, shape, "its size overflows 64 bits");
  }
  return empty ? 0 : bytes;
}

void check_strides(DType dtype, Extents shape, Extents strides) {
  if (strides.size() != shape.size()) {
    reject(dtype, shape, fmt::format("{} strides for {} dimensions", strides.size(), shape.size()));
  }
  if (*(strides.end() - 1) != 1) {
    reject(dtype, shape, fmt::format("its last stride is {}; it must be 1", *(strides.end() - 1)));
  }
  std::int64_t end = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::int64_t stride = strides.begin()[i];
    const std::int64_t extent = shape.begin()[i];
    if (stride < 0) reject(dtype, shape, fmt::format("stride {} is negative", stride));
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(stride, extent == 0 ? 1 : extent, &reach) || __builtin_add_overflow(end, reach, &end)) {
      reject(dtype, shape, "its strides overflow 64 bits");
    }
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(end, static_cast<std::int64_t>(size_of(dtype)), &bytes)) {
    reject(dtype, shape, "its strides overflow 64 bits");
  }
}

void check_pointer(const void* data, DType dtype, Extents shape, bool empty) {
  if (data == nullptr && !empty) reject(dtype, shape, "it has elements, but its address is null");
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0) {
    reject(dtype, shape, fmt::format("its address {} is not a multiple of the element size", data));
  }
}

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::f8e4m3:
    case DType::u8:
      return 1;
  }
  return 1;
}

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f8e4m3:
      return "f8e4m3";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "unknown";
}

Tensor Tensor::from_raw(void* data, DType dtype, Extents shape, Extents strides) {
  const bool empty = checked_bytes(dtype, shape) == 0;
  if (strides.size() > 0) check_strides(dtype, shape, strides);
  check_pointer(data, dtype, shape, empty);
  Tensor t;
  t.data_ = data;
  t.dtype_ = dtype;
  t.dims_ = static_cast<int>(shape.size());
  std::int64_t dense = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    t.shape_[i] = shape.begin()[i];
    t.strides_[i] = strides.size() > 0 ? strides.begin()[i] : dense;
    dense *= t.shape_[i];
  }
  return t;
}

Tensor Tensor::allocate(const Device& device, DType dtype, Extents shape) {
  const Buffer buffer = device.allocate(static_cast<std::size_t>(checked_bytes(dtype, shape)));
  return view(buffer, 0, dtype, shape);
}

Tensor Tensor::view(const Buffer& buffer, std::size_t byte_offset, DType dtype, Extents shape) {
  const auto bytes = static_cast<std::size_t>(checked_bytes(dtype, shape));
  if (byte_offset > buffer.bytes() || bytes > buffer.bytes() - byte_offset) {
    reject(dtype, shape,
           fmt::format("{} bytes from byte {} on do not fit into a buffer of {}", bytes, byte_offset, buffer.bytes()));
  }
  void* data = buffer.data() == nullptr ? nullptr : static_cast<char*>(buffer.data()) + byte_offset;
  Tensor t = from_raw(data, dtype, shape);
  t.owner_ = buffer.owner();
  return t;
}

std::int64_t Tensor::elements() const noexcept { return dims_ == 0 ? 0 : size(0) * row_elements(); }

std::int64_t Tensor::row_elements() const noexcept {
  std::int64_t n = dims_ == 0 ? 0 : 1;
  for (int d = 1; d < dims_; ++d) n *= size(d);
  return n;
}

bool Tensor::rows_dense() const noexcept {
  std::int64_t dense = 1;
  for (int d = dims_ - 1; d > 0; --d) {
    // The stride of a dimension with one entry is never used.
    if (size(d) > 1 && stride(d) != dense) return row_elements() == 0;
    dense *= size(d);
  }
  return true;
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  if (!valid()) throw Error(ErrorCode::invalid_usage, "rows of a default-made Tensor");
  if (begin < 0 || count < 0 || begin > size(0) || count > size(0) - begin) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor {}: it has no rows [{}, {} + {})", describe(), begin, begin, count));
  }
  Tensor t = *this;
  t.shape_[0] = count;
  // An empty slice keeps the address: the one past a strided tensor's last row may lie beyond its memory.
  if (count > 0) t.data_ = static_cast<char*>(data_) + static_cast<std::size_t>(begin) * row_stride_bytes();
  return t;
}

std::string Tensor::describe() const {
  return valid() ? describe_shape(dtype_, shape_.data(), static_cast<std::size_t>(dims_)) : "no tensor";
}

}  // namespace tandem

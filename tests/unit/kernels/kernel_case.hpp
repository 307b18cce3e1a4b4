// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "device/e4m3.hpp"
#include "kernels/cpu/context.hpp"
#include "support/random.hpp"
#include "support/reference/reference.hpp"
#include "tandem/kernels.hpp"

/// A random problem, as the reference takes it and as the kernels do.
namespace tandem::testing {

using Shape = std::initializer_list<std::int64_t>;

/// Memory whose every byte is 0xFF: a NaN, or -1, in all types.
inline Buffer poisoned_buffer(std::size_t bytes) {
  std::shared_ptr<void> memory(std::aligned_alloc(64, (bytes + 64) / 64 * 64), std::free);
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), 0xFF, bytes);
  return Buffer(std::move(memory), bytes);
}
inline Tensor poisoned(DType dtype, Shape shape) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
  return Tensor::view(poisoned_buffer(bytes), 0, dtype, shape);
}
inline Tensor zeros(DType dtype, Shape shape) {
  const Tensor t = poisoned(dtype, shape);
  std::memset(t.data(), 0, static_cast<std::size_t>(t.elements()) * size_of(dtype));
  return t;
}

/// A tensor of values that fit its type.
inline Tensor from_floats(DType dtype, Shape shape, const std::vector<float>& values) {
  const Tensor t = poisoned(dtype, shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    if (dtype == DType::bf16 && (bits & 0xFFFFU) != 0 && !std::isnan(values[i])) {
      throw std::logic_error("from_floats: a value does not fit bf16");
    }
    if (dtype == DType::f32) {
      t.data_as<float>()[i] = values[i];
    } else if (dtype == DType::f8e4m3) {
      const std::uint8_t code = detail::e4m3_from_float(values[i]);
      t.data_as<std::uint8_t>()[i] = code;
      const float value = reference::decode_e4m3({&code, 1})[0];
      if (value != values[i] && !std::isnan(values[i])) {
        throw std::logic_error("from_floats: a value does not fit e4m3");
      }
    } else {
      t.data_as<std::uint16_t>()[i] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
  return t;
}
template <class T>
Tensor from_values(DType dtype, Shape shape, const std::vector<T>& values) {
  const Tensor t = poisoned(dtype, shape);
  if (!values.empty()) std::memcpy(t.data(), values.data(), values.size() * sizeof(T));
  return t;
}

/// All elements of a dense tensor.
inline std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    switch (t.dtype()) {
      case DType::f32:
        values.push_back(static_cast<double>(t.data_as<float>()[i]));
        break;
      case DType::f64:
        values.push_back(t.data_as<double>()[i]);
        break;
      case DType::bf16:
        values.push_back(static_cast<double>(reference::decode_bf16({t.data_as<std::uint16_t>() + i, 1})[0]));
        break;
      case DType::i32:
        values.push_back(t.data_as<std::int32_t>()[i]);
        break;
      default:
        throw std::logic_error("values_of: " + t.describe());
    }
  }
  return values;
}
inline std::vector<std::uint8_t> bytes_of(const Tensor& t) {
  const std::size_t count = static_cast<std::size_t>(t.elements()) * size_of(t.dtype());
  return {t.data_as<std::uint8_t>(), t.data_as<std::uint8_t>() + count};
}
inline double relative_error(const Tensor& got, const std::vector<double>& want) {
  const std::vector<double> values = values_of(got);
  if (values.size() != want.size()) throw std::logic_error("relative_error: sizes differ");
  reference::RelativeError error;
  error.add(std::span<const double>(values), std::span<const double>(want));
  return error.value();
}

struct CaseShape {
  std::int64_t rows = 60, keys = 100, heads = 3, index_heads = 2;
  std::int64_t dim = 576;  ///< tests of the indexer alone take fewer columns, to be quick
  std::int64_t topk = 16;
  bool sink = false;
  bool relu = true;
};

struct Case {
  reference::Problem p;
  DType dtype = DType::f32;
  DType index_dtype = DType::f32;  ///< of index_q and index_k
  Tensor q, kv, sink, dout, index_q, index_w, index_k, index_k_scale;

  IndexerInputs indexer() const {
    return {index_q, index_w, index_k, p.begin, p.end, p.topk, p.relu, {}, {}, {}, index_k_scale};
  }
  /// Of d_index_q.
  DType gradient_dtype() const { return index_dtype == DType::f8e4m3 ? DType::f32 : index_dtype; }
  AttentionInputs attention(const Tensor& indices, const Tensor& length) const {
    return {q, kv, indices, length, sink, static_cast<float>(p.scale)};
  }
  /// Makes the tensors from the problem, after a test has changed it.
  void refresh() {
    q = from_floats(dtype, {p.rows, p.heads, p.dim}, p.q);
    kv = from_floats(dtype, {p.keys, p.dim}, p.kv);
    dout = from_floats(dtype, {p.rows, p.heads, value_dim}, p.dout);
    sink = p.sink.empty() ? Tensor() : from_floats(DType::f32, {p.heads}, p.sink);
    index_q = from_floats(index_dtype, {p.rows, p.index_heads, index_dim}, p.index_q);
    index_k = from_floats(index_dtype, {p.keys, index_dim}, p.index_k);
    index_k_scale = p.index_k_scale.empty() ? Tensor() : from_floats(DType::f32, {p.keys}, p.index_k_scale);
    index_w = from_floats(DType::f32, {p.rows, p.index_heads}, p.index_w);
  }
};

/// Normally distributed numbers that fit the type.
inline std::vector<float> normal(std::mt19937_64& rng, std::int64_t count, DType dtype, float size = 1) {
  std::normal_distribution<float> distribution(0, size);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = distribution(rng);
  if (dtype == DType::f32) return values;
  if (dtype == DType::f8e4m3) {
    for (float& x : values) x = detail::e4m3_to_float(detail::e4m3_from_float(x));
    return values;
  }
  std::vector<std::uint16_t> upper_halves;
  for (const float x : values)
    upper_halves.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
  return reference::decode_bf16(upper_halves);
}

/// Two causal documents of keys; the queries are the last rows of the batch; about one row in ten sees nothing. With
/// e4m3 only the indexer's inputs are of that type; the attention's are f32.
inline Case make_case(std::mt19937_64& rng, const CaseShape& shape, DType index_dtype) {
  Case c;
  const DType dtype = index_dtype == DType::f8e4m3 ? DType::f32 : index_dtype;
  c.dtype = dtype;
  c.index_dtype = index_dtype;
  reference::Problem& p = c.p;
  p.rows = shape.rows;
  p.keys = shape.keys;
  p.heads = shape.heads;
  p.index_heads = shape.index_heads;
  p.dim = shape.dim;
  p.topk = shape.topk;
  p.relu = shape.relu;
  p.scale = 0.0625;
  const std::int64_t border = shape.keys / 5;
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    const std::int64_t position = shape.keys - shape.rows + t;
    const bool dead = rng() % 10 == 0;
    p.begin.push_back(position >= border ? border : 0);
    p.end.push_back(dead ? p.begin.back() : position + 1);
  }
  p.q = normal(rng, p.rows * p.heads * p.dim, dtype);
  p.kv = normal(rng, p.keys * p.dim, dtype);
  p.dout = normal(rng, p.rows * p.heads * value_dim, dtype);
  if (shape.sink) p.sink = normal(rng, p.heads, DType::f32);
  p.index_q = normal(rng, p.rows * p.index_heads * index_dim, index_dtype);
  p.index_k = normal(rng, p.keys * index_dim, index_dtype);
  if (index_dtype == DType::f8e4m3) {
    std::uniform_real_distribution<float> scale(0.25F, 2.0F);
    for (std::int64_t key = 0; key < p.keys; ++key) p.index_k_scale.push_back(scale(rng));
  }
  p.index_w = normal(rng, p.rows * p.index_heads, DType::f32, 0.1F);
  p.loss_scale = 1.0 / static_cast<double>(p.rows);
  c.refresh();
  return c;
}

/// A kernel call's surroundings.
struct Runner {
  explicit Runner(int threads = 2) : pool(threads) {}
  detail::cpu::ThreadPool pool;
  detail::cpu::Context context{detail::cpu::micro(), pool};
};

inline TopkLists poisoned_lists(std::int64_t rows, std::int64_t topk) {
  return {poisoned(DType::i32, {rows, topk}), poisoned(DType::i32, {rows}), zeros(DType::i64, {1})};
}
inline TopkState poisoned_state(std::int64_t rows, std::int64_t topk) {
  return {poisoned(DType::f32, {rows, topk}), poisoned(DType::i32, {rows, topk}), poisoned(DType::i32, {rows})};
}
inline std::vector<std::int64_t> list_of(const TopkLists& lists, std::int64_t row) {
  const std::int32_t* list = lists.indices.data_as<std::int32_t>() + row * lists.indices.size(1);
  return {list, list + lists.length.data_as<std::int32_t>()[row]};
}

/// Lists as tensors, garbage beyond their lengths.
inline TopkLists lists_tensor(const reference::Lists& lists, std::int64_t topk) {
  const auto rows = static_cast<std::int64_t>(lists.size());
  TopkLists t = poisoned_lists(rows, topk);
  for (std::int64_t i = 0; i < rows * topk; ++i) t.indices.data_as<std::int32_t>()[i] = 0x7F0000F1;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto& list = lists[static_cast<std::size_t>(row)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      t.indices.data_as<std::int32_t>()[row * topk + static_cast<std::int64_t>(i)] = static_cast<std::int32_t>(list[i]);
    }
    t.length.data_as<std::int32_t>()[row] = static_cast<std::int32_t>(list.size());
  }
  return t;
}

}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cpu/context.hpp"

namespace tandem::detail::cpu {

/// What a block of query rows adds to landed rows, kept until all of the block is known:
///   destination[key] += sum over k of coefficient[row, key, k] * source_k(row),   row after row.
/// Threads share the sum by key ranges, so each element is summed in row order whatever their number. A row's
/// contribution is summed up first and then added: a key that all rows choose takes one rounding a row.
class ScatterBlock {
 public:
  /// Memory for `rows` rows of up to `keys` keys with `inner` coefficients each.
  ScatterBlock(std::int64_t rows, std::int64_t keys, std::int64_t inner);
  /// Rows for which `bytes` suffice, at least `least`.
  static std::int64_t rows_within(std::int64_t bytes, std::int64_t least, std::int64_t keys, std::int64_t inner);

  std::int64_t rows() const { return rows_; }
  /// Sets the keys of a row, ascending and distinct, and returns its coefficients [keys, inner], to be written.
  /// Different rows may be set by different threads at once.
  float* set_row(std::int64_t row, std::span<const std::int32_t> keys);

  /// Columns [column, column + columns) of the destination get the first `inner` sources' same columns.
  struct Band {
    std::int64_t column, columns, inner;
  };
  /// Gives the addresses of the sources of a row, which may lie in `scratch` of `scratch_floats`.
  using Sources = std::function<void(std::int64_t row, float* scratch, const float** rows)>;
  /// Adds the first `rows` rows into `destination` f32 [n, columns].
  void add_to(const Context& context, std::int64_t rows, const Tensor& destination, std::span<const Band> bands,
              std::int64_t scratch_floats, const Sources& sources) const;

 private:
  struct Worker;
  std::span<const std::int32_t> keys_of(std::int64_t row) const;
  std::vector<std::int32_t> balanced_bounds(std::int64_t rows, int parts) const;

  std::int64_t rows_, keys_, inner_;
  std::vector<std::int32_t> key_;
  std::vector<std::int64_t> count_;
  std::vector<float> coefficient_;
};

}  // namespace tandem::detail::cpu

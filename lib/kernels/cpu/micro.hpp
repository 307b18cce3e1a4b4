// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The inner loops of the CPU kernels, compiled once per instruction set and chosen when the process starts using them.
///
/// Every result element is one chain of operations whose order does not depend on how many elements are computed beside
/// it: tiles, tails, threads and calls cannot change a bit of it. Between instruction sets bits do differ (vector width
/// of `dots`, fused multiply-add).
namespace tandem::detail::cpu {

/// Indexer keys are scored in panels of this many, stored column by column: panel[c * panel_keys + j].
constexpr std::int64_t panel_keys = 16;

struct Micro {
  const char* name;
  std::uint32_t id;  ///< distinct for instruction sets whose bits differ

  /// z[i, j] = q_i . key_j over index_dim columns, for dense q [q_rows, index_dim] and `panels` panels; z has row
  /// stride panels * panel_keys.
  void (*panel_dots)(const float* q, std::int64_t q_rows, const float* panel, std::int64_t panels, float* z);
  /// scores[j] = sum over h, ascending, of w[h] * relu(z[h, j]); a NaN stays one.
  void (*combine_heads)(const float* z, std::int64_t z_stride, const float* w, std::int64_t heads, bool relu,
                        std::int64_t keys, float* scores);
  /// c[i * c_stride + j] = a_i . b_j; `columns` is a multiple of 16.
  void (*dots)(const float* const* a, std::int64_t a_rows, const float* const* b, std::int64_t b_rows,
               std::int64_t columns, float* c, std::int64_t c_stride);
  /// out_m += sum over k, ascending from 0, of coef[m * coef_stride + k] * row_k; `columns` is a multiple of 16.
  void (*add_product)(float* const* out, std::int64_t outs, const float* coef, std::int64_t coef_stride,
                      const float* const* rows, std::int64_t inner, std::int64_t columns);
  /// bf16 to f32; `count` is a multiple of 8.
  void (*widen)(const std::uint16_t* from, std::int64_t count, float* to);
};

/// What every processor of the architecture runs.
const Micro& micro_baseline();
/// Null if this build or this processor has no AVX2 and FMA.
const Micro* micro_avx2();
/// The best of this processor.
const Micro& micro();

}  // namespace tandem::detail::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "job.hpp"
#include "tandem/dsa.hpp"

namespace tandem::cli {

/// The operator for a model of this shape; all else is the default.
DsaConfig config_of(const ModelShape& shape);

/// Inputs of the operator for some rows, and the gradient that backward starts from.
struct InputRows {
  DsaInputs inputs;
  Tensor dout;
};

/// Makes the inputs of a job. A row is a pure function of (seed, document, offset in the document, the bytes up to it),
/// so that any rank makes any row alike, whatever the layout and pads. Pad rows are NaN: whoever reads one will show
/// it.
///
/// Without text: independent noise of variance 1. With text: each byte and the seven before it, weighted down, are
/// embedded by seeded tables, RMS-normalised and projected by seeded matrices; queries share a part of their matrix
/// with the keys, so that like contexts attract each other; the 64 RoPE columns are rotated by the offset in the
/// document.
///
/// Indexer inputs in e4m3 are the same numbers, scaled so that the largest of a key, or of a query's head, is 448; the
/// scale of a query's head is folded into index_w.
class InputGenerator {
 public:
  explicit InputGenerator(const DsaJob& job);
  ~InputGenerator();

  /// Rows of `segments` (global positions of `layout`), one after another.
  InputRows rows(const Device& device, const SequenceLayout& layout, std::span<const RowRange> segments) const;

 private:
  class RowSource;
  class NoiseSource;
  class TextSource;
  static constexpr std::int64_t block_rows = 32;  ///< made at once: bounds the scratch, and reuses the matrices

  void store_tokens(const InputRows& rows, std::int64_t row, std::int64_t document, std::int64_t offset,
                    std::int64_t count) const;
  void store_pads(const InputRows& rows, std::int64_t row, std::int64_t count) const;

  ModelShape shape_;
  DType dtype_;
  DType index_dtype_;
  std::uint64_t seed_;
  std::unique_ptr<RowSource> source_;
};

}  // namespace tandem::cli

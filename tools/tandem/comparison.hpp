// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "results.hpp"
#include "support/reference/reference.hpp"
#include "tandem/layout.hpp"

namespace tandem::cli {

/// What the reference says about some consecutive rows of the sample.
struct ReferenceRows {
  std::span<const double> out, lse, dq, d_index_q, d_index_w, loss, loss_magnitude;
};

/// How far one set of results is from the reference. Feed it the rows, then the keys.
class Comparison {
 public:
  explicit Comparison(const Results& results) : results_(results) {}
  /// `positions`: the global rows, whose reference `want` has in this order.
  void add_rows(std::span<const std::int64_t> positions, const ReferenceRows& want);
  /// Gradients of keys, [keys, width] each over the whole batch.
  void add_keys(RowRange keys, std::span<const double> dkv, std::span<const double> d_index_k);

  struct Named {
    const char* name;
    double error;
  };
  std::vector<Named> errors() const;

 private:
  const Results& results_;
  reference::RelativeError out_, lse_, dq_, dkv_, d_index_q_, d_index_k_, d_index_w_;
  double loss_difference_ = 0;
  double loss_magnitude_ = 0;
};

/// A row of a tensor of any float type, in float64.
std::vector<double> decode_row(const Tensor& tensor, std::int64_t row);

}  // namespace tandem::cli

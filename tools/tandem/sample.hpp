// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job.hpp"
#include "tandem/layout.hpp"

namespace tandem::cli {

/// Multiply-adds that the float64 reference may spend, for the selection and for attention with its gradients. The
/// defaults are some ten seconds each on two cores.
struct CheckBudget {
  double scoring = 1e10;
  double attention = 2e10;
};

/// Which rows are computed again: all if the budget allows. Else half of it goes to the end of the longest document
/// (the gradients of keys there are complete, as only later queries see a key) and half to single rows spread over the
/// batch.
struct CheckSample {
  std::vector<RowRange> rows;           ///< global, ascending, none of them pads
  std::vector<RowRange> complete_keys;  ///< keys all of whose queries are among `rows`
  /// The selection is searched again in every n-th row that has to choose.
  std::int64_t topk_stride = 1;
  std::int64_t row_count = 0;
  std::string cut;  ///< what is left out, in words; "" if nothing
};

CheckSample choose_sample(const SequenceLayout& layout, const ModelShape& shape, const CheckBudget& budget);

}  // namespace tandem::cli

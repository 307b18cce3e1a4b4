// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job.hpp"
#include "results.hpp"
#include "support/reference/reference.hpp"
#include "tandem/layout.hpp"

namespace tandem::cli {

/// A tensor's distance from the float64 reference.
struct TensorError {
  std::string name;
  double error = 0;
  double bound = 0;  ///< the most that is ok
};

struct CheckResult {
  std::vector<TensorError> errors;
  std::int64_t topk_mismatches = 0;
  std::int64_t topk_near_ties = 0;
  std::int64_t relu_near_ties = 0;  ///< arguments of relu that the ranks saw, within rounding, on the other side of 0
  /// Rows without keys, and pads, whose results are not exactly what they must be.
  std::int64_t dead_row_faults = 0;
  bool unsharded_sets_differ = false;  ///< looked at with bf16 only
  std::int64_t checked_rows = 0;       ///< whose results were computed again
  std::int64_t rows = 0;
  double loss = 0;  ///< what the ranks computed
  /// What was left out, in words; "" if nothing.
  std::string cut;

  bool ok() const;
  /// Everything that is not ok, for messages.
  std::vector<std::string> faults() const;
};

/// Compares what the ranks computed with the unsharded float64 reference on the same inputs. fp32 is held to 2e-5; bf16
/// to twice the error of the same kernels run unsharded, which this runs. Where all rows would take minutes, a sample
/// of them. Says on stderr how far it is, if it takes long.
CheckResult check(const DsaJob& job, const Results& results);

/// What the reference computes with: all keys, and the queries at these global positions (ascending, no pads), made
/// anew, as no rank's memory is trusted.
reference::Problem make_problem(const DsaJob& job, const SequenceLayout& layout,
                                const std::vector<std::int64_t>& queries);

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tandem::detail::cpu {

/// Turns the q . k of one head, in place, into probabilities; returns the natural logarithm of the sum of exponentials.
/// A sink, if not null, takes part in that sum.
inline float softmax_row(float* logits, std::int64_t count, float scale, const float* sink) {
  float most = sink != nullptr ? *sink : -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < count; ++i) {
    logits[i] *= scale;
    most = std::max(most, logits[i]);
  }
  double sum = sink != nullptr ? std::exp(static_cast<double>(*sink - most)) : 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    logits[i] = std::exp(logits[i] - most);
    sum += logits[i];
  }
  const auto inverse = static_cast<float>(1.0 / sum);
  for (std::int64_t i = 0; i < count; ++i) logits[i] *= inverse;
  return static_cast<float>(static_cast<double>(most) + std::log(sum));
}

}  // namespace tandem::detail::cpu

// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/step_sample.hpp"

#include <cstring>
#include <span>

#include "support/reference/reference.hpp"
#include "tandem/bench/row_values.hpp"

namespace tandem::cli {
namespace {

constexpr std::int64_t rows_to_compare = 64;
/// Of a row of sums, relative: thousands of fp32 terms that partly cancel.
constexpr double order_bound = 0x1p-11;

bool same_sums(const std::vector<float>& found, const std::vector<float>& wanted, bool deterministic) {
  // Bits, so that poison on both sides is no difference of its own.
  if (found.empty() || std::memcmp(found.data(), wanted.data(), found.size() * sizeof(float)) == 0) return true;
  if (deterministic) return false;
  reference::RelativeError error;
  error.add(std::span<const float>(found), std::span<const float>(wanted));
  return error.value() <= order_bound;
}

}  // namespace

StepSample take_sample(const RowFiller& filler, const StepResults& results, const QueryRows& rows) {
  StepSample sample;
  for (const std::int64_t row : spread_rows(rows.queries(), rows_to_compare)) {
    std::vector<std::byte>& bytes = sample.exact.emplace_back();
    for (const Tensor& t : results.exact) {
      const Tensor here = filler.fetch(t, row, 1);
      bytes.insert(bytes.end(), here.data_as<std::byte>(), here.data_as<std::byte>() + here.row_bytes());
    }
  }
  for (const std::int64_t row : spread_rows(rows.rows, rows_to_compare)) {
    std::vector<float>& sums = sample.sums.emplace_back();
    for (const Tensor& t : results.sums) {
      const std::vector<float> values = decode(filler.fetch(t, row, 1));
      sums.insert(sums.end(), values.begin(), values.end());
    }
  }
  return sample;
}

std::int64_t differing_rows(const StepSample& found, const StepSample& wanted, bool deterministic) {
  std::int64_t differ = 0;
  for (std::size_t i = 0; i < wanted.exact.size(); ++i) differ += found.exact[i] == wanted.exact[i] ? 0 : 1;
  for (std::size_t i = 0; i < wanted.sums.size(); ++i)
    differ += same_sums(found.sums[i], wanted.sums[i], deterministic) ? 0 : 1;
  return differ;
}

}  // namespace tandem::cli

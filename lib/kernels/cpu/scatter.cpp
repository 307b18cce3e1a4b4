// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/scatter.hpp"

#include <algorithm>
#include <limits>

#include "kernels/cpu/rows.hpp"

namespace tandem::detail::cpu {

ScatterBlock::ScatterBlock(std::int64_t rows, std::int64_t keys, std::int64_t inner)
    : rows_(rows),
      keys_(keys),
      inner_(inner),
      key_(static_cast<std::size_t>(rows * keys)),
      count_(static_cast<std::size_t>(rows)),
      coefficient_(static_cast<std::size_t>(rows * keys * inner)) {}

std::int64_t ScatterBlock::rows_within(std::int64_t bytes, std::int64_t least, std::int64_t keys, std::int64_t inner) {
  return std::max(least, bytes / (4 * std::max<std::int64_t>(keys, 1) * (inner + 1)));
}

float* ScatterBlock::set_row(std::int64_t row, std::span<const std::int32_t> keys) {
  std::copy(keys.begin(), keys.end(), key_.begin() + row * keys_);
  count_[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(keys.size());
  return coefficient_.data() + row * keys_ * inner_;
}

std::span<const std::int32_t> ScatterBlock::keys_of(std::int64_t row) const {
  return {key_.data() + row * keys_, static_cast<std::size_t>(count_[static_cast<std::size_t>(row)])};
}

// Where to cut the landed rows so that the parts get about as many contributions each, judged by a sample.
std::vector<std::int32_t> ScatterBlock::balanced_bounds(std::int64_t rows, int parts) const {
  std::vector<std::int32_t> sample;
  std::int64_t total = 0;
  for (std::int64_t r = 0; r < rows; ++r) total += count_[static_cast<std::size_t>(r)];
  const std::int64_t stride = total / 4096 + 1;
  std::int64_t skip = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto keys = keys_of(r);
    std::int64_t i = skip;
    for (; i < std::ssize(keys); i += stride) sample.push_back(keys[static_cast<std::size_t>(i)]);
    skip = i - std::ssize(keys);
  }
  std::sort(sample.begin(), sample.end());
  std::vector<std::int32_t> bounds{0};
  for (int p = 1; p < parts && !sample.empty(); ++p) {
    bounds.push_back(sample[sample.size() * static_cast<std::size_t>(p) / static_cast<std::size_t>(parts)]);
  }
  bounds.push_back(std::numeric_limits<std::int32_t>::max());
  return bounds;
}

struct ScatterBlock::Worker {
  Worker(const ScatterBlock& block, const Micro& micro, const Tensor& destination, std::span<const Band> bands)
      : block(block), micro(micro), destination(destination), bands(bands), rows(size(block.inner_)), shifted(rows) {}

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  void add(std::int64_t row, std::int32_t begin, std::int32_t end, const Sources& sources, float* scratch) {
    const auto keys = block.keys_of(row);
    const auto first = std::lower_bound(keys.begin(), keys.end(), begin);
    const auto last = std::lower_bound(first, keys.end(), end);
    if (first == last) return;
    sources(row, scratch, rows.data());
    const float* coefficients = block.coefficient_.data() + (row * block.keys_ + (first - keys.begin())) * block.inner_;
    out.resize(size(last - first));
    for (const Band& band : bands) {
      std::transform(first, last, out.begin(),
                     [&](std::int32_t key) { return entry<float>(destination, key) + band.column; });
      std::transform(rows.begin(), rows.begin() + band.inner, shifted.begin(),
                     [&](const float* source) { return source + band.column; });
      micro.add_product(out.data(), std::ssize(out), coefficients, block.inner_, shifted.data(), band.inner,
                        band.columns);
    }
  }

  const ScatterBlock& block;
  const Micro& micro;
  const Tensor& destination;
  std::span<const Band> bands;
  std::vector<const float*> rows, shifted;
  std::vector<float*> out;
};

void ScatterBlock::add_to(const Context& context, std::int64_t rows, const Tensor& destination,
                          std::span<const Band> bands, std::int64_t scratch_floats, const Sources& sources) const {
  const std::vector<std::int32_t> bounds = balanced_bounds(rows, context.pool.threads());
  context.pool.run(std::ssize(bounds) - 1, [&](TaskSource& tasks) {
    Worker worker(*this, context.micro, destination, bands);
    std::vector<float> scratch(static_cast<std::size_t>(scratch_floats));
    for (std::int64_t part = 0; tasks.next(part);) {
      const auto p = static_cast<std::size_t>(part);
      for (std::int64_t r = 0; r < rows; ++r) worker.add(r, bounds[p], bounds[p + 1], sources, scratch.data());
    }
  });
}

}  // namespace tandem::detail::cpu

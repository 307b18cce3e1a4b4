// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/figures.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::cli {

Summary summarize(std::vector<double> samples) {
  Summary s;
  s.count = samples.size();
  if (samples.empty()) return s;
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  s.median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
  s.p95 = samples[(n * 95 + 99) / 100 - 1];
  const auto count = static_cast<double>(n);
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  double squares = 0;
  for (const double x : samples) squares += (x - mean) * (x - mean);
  s.cv = mean > 0 ? std::sqrt(squares / count) / mean : 0;
  return s;
}

double gigabytes_per_second(std::uint64_t bytes, double us) {
  return us > 0 ? static_cast<double>(bytes) / us / 1e3 : 0;
}

double BesideFigures::slow_down() const {
  return gemm_alone_us > 0 ? 100 * (gemm_beside_us - gemm_alone_us) / gemm_alone_us : 0;
}

double BenchRow::algorithm_rate() const { return gigabytes_per_second(volume.size, us.median); }
double BenchRow::bus_rate() const { return gigabytes_per_second(volume.received, us.median); }

}  // namespace tandem::cli

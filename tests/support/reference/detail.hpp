// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "support/reference/reference.hpp"

namespace tandem::reference::detail {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// 1 without scales.
inline double key_scale(const Problem& p, std::int64_t key) {
  return p.index_k_scale.empty() ? 1.0 : static_cast<double>(p.index_k_scale[at(key)]);
}

/// a . b in eight interleaved sums, which compilers turn into vector instructions. All widths are multiples of 8.
template <class A, class B>
double dot(const A* a, const B* b, std::int64_t n) {
  double sums[8] = {};
  for (std::int64_t i = 0; i < n; i += 8) {
    for (int lane = 0; lane < 8; ++lane)
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// y += factor * x
template <class X>
void add_scaled(double* y, double factor, const X* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * static_cast<double>(x[i]);
}

/// Calls task(row) for all rows of a portion from several threads; rethrows the first exception.
inline void for_rows(Portion portion, int threads, const std::function<void(std::int64_t)>& task) {
  if (threads <= 0) threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  threads = static_cast<int>(std::clamp<std::int64_t>(portion.end - portion.begin, 1, threads));
  std::atomic<std::int64_t> next{portion.begin};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::int64_t row = next++; row < portion.end; row = next++) task(row);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
}

/// Rows of a gradient that many query rows add to, each under one of a few locks.
class SharedRows {
 public:
  SharedRows(std::vector<double>& values, std::int64_t width) : values_(values), width_(width), locks_(256) {}
  void add(std::int64_t row, const double* x) {
    const std::lock_guard lock(locks_[at(row) % locks_.size()]);
    add_scaled(values_.data() + row * width_, 1.0, x, width_);
  }

 private:
  std::vector<double>& values_;
  std::int64_t width_;
  std::vector<std::mutex> locks_;
};

/// softmax of `heads` rows of logits [heads, keys] in place; lse (natural, sink included) into `lse`.
struct Softmax {
  std::vector<double> p;    ///< [heads, keys]
  std::vector<double> lse;  ///< [heads]
};
Softmax attention_softmax(const Problem& p, std::int64_t row, std::span<const std::int64_t> keys);

}  // namespace tandem::reference::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

namespace tandem::detail::cpu {

/// A score and its landed row as one number: greater means earlier in the total order (score descending, row
/// ascending). -0 becomes +0; -infinity stays above 0, which stands for "nothing".
inline std::uint64_t rank_key(float score, std::int64_t landed_row) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(score + 0.0F);
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32) | ~static_cast<std::uint32_t>(landed_row);
}
inline float rank_key_score(std::uint64_t key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);
  return std::bit_cast<float>((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}
inline std::int32_t rank_key_row(std::uint64_t key) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
}

/// The K best of a row's scores, which may be offered in any order and any portions: keeps up to `capacity` candidates
/// in memory of the caller and cuts them to K when that is full.
class TopkSelector {
 public:
  static std::int64_t capacity(std::int64_t k) { return 2 * k; }

  TopkSelector() = default;
  TopkSelector(std::uint64_t* storage, std::int64_t k) : data_(storage), k_(k) {}

  void restore(float score, std::int32_t landed_row) { data_[count_++] = rank_key(score, landed_row); }

  /// Offers scores of landed rows first_row, first_row + 1, ...; returns how many are NaN, which are never taken.
  std::int64_t offer(std::span<const float> scores, std::int64_t first_row) {
    std::int64_t nans = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const float score = scores[i];
      if (score < floor_) continue;
      if (score != score) {
        ++nans;
        continue;
      }
      const std::uint64_t key = rank_key(score, first_row + static_cast<std::int64_t>(i));
      if (key <= threshold_) continue;
      data_[count_++] = key;
      if (count_ == capacity(k_)) cut();
    }
    return nans;
  }

  /// The best min(K, offered), by landed row ascending. Nothing may be offered afterwards.
  std::span<const std::uint64_t> finish() {
    if (count_ > k_) cut();
    std::sort(data_, data_ + count_,
              [](std::uint64_t a, std::uint64_t b) { return rank_key_row(a) < rank_key_row(b); });
    return {data_, static_cast<std::size_t>(count_)};
  }

 private:
  void cut() {
    std::nth_element(data_, data_ + k_ - 1, data_ + count_, std::greater<>());
    count_ = k_;
    threshold_ = data_[k_ - 1];
    floor_ = rank_key_score(threshold_);
  }

  std::uint64_t* data_ = nullptr;
  std::int64_t k_ = 0;
  std::int64_t count_ = 0;
  std::uint64_t threshold_ = 0;  ///< what does not exceed it cannot be among the best K
  float floor_ = -std::numeric_limits<float>::infinity();
};

}  // namespace tandem::detail::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/context.hpp"
#include "kernels/cpu/lists.hpp"
#include "kernels/cpu/rows.hpp"

namespace tandem::detail::cpu {

/// Most keys of a tile: 64 rows of 576 floats stay in the second-level cache.
constexpr std::int64_t tile_keys = 64;

/// Walks the keys of one row tile by tile; `visit(first, count, rows)` gets their f32 addresses. A row with a single
/// tile is widened once, however often it is walked.
class RowTiles {
 public:
  RowTiles(const Micro& micro, const Tensor& kv) : tile_(micro, kv) {}

  void start(const RowKeys& keys) {
    keys_ = &keys;
    loaded_ = -1;
  }
  template <class Visit>
  void walk(const Visit& visit) {
    for (std::int64_t first = 0; first < keys_->size(); first += tile_keys) {
      const std::int64_t count = std::min(tile_keys, keys_->size() - first);
      if (loaded_ != first) tile_.load(keys_->keys.data() + first, count);
      loaded_ = first;
      visit(first, count, tile_.rows());
    }
  }

 private:
  KeyTile tile_;
  const RowKeys* keys_ = nullptr;
  std::int64_t loaded_ = -1;
};

}  // namespace tandem::detail::cpu

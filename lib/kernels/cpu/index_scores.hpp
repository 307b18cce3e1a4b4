// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "kernels/cpu/micro.hpp"
#include "kernels/cpu/rows.hpp"
#include "tandem/kernels.hpp"

namespace tandem::detail::cpu {

/// Most keys of a tile: its panels fit the first-level cache.
constexpr std::int64_t score_tile_keys = 64;

/// The only place where indexer scores are computed, for the top-k and for the loss alike: a score has the same bits
/// whichever of them asks and whatever else is in the tile.
class IndexScorer {
 public:
  IndexScorer(const Micro& micro, const IndexerInputs& in)
      : micro_(micro),
        relu_(in.relu),
        heads_(in.index_q.size(1)),
        key_scales_(in.index_k_scale),
        panels_(static_cast<std::size_t>(score_tile_keys * index_dim)) {}

  /// Whether scores are multiplied by scales of the keys.
  bool scaled() const { return key_scales_.valid(); }
  /// Of a landed row; 1 without scales.
  float key_scale(std::int64_t landed_row) const { return scaled() ? *entry<float>(key_scales_, landed_row) : 1.0F; }

  /// Chooses up to score_tile_keys keys, by the addresses of their f32 rows; `landed_row(i)` says which the i-th is.
  template <class LandedRow>
  void set_keys(const float* const* rows, std::int64_t count, const LandedRow& landed_row) {
    if (scaled()) {
      for (std::int64_t j = 0; j < count; ++j) scales_[j] = key_scale(landed_row(j));
      std::fill(scales_ + count, std::end(scales_), 0.0F);
    }
    tile_panels_ = (count + panel_keys - 1) / panel_keys;
    for (std::int64_t j = 0; j < tile_panels_ * panel_keys; ++j) {
      float* to = panels_.data() + (j / panel_keys) * panel_keys * index_dim + j % panel_keys;
      // Lanes behind the last key must hold something; what they score is not looked at.
      const float* from = rows[std::min(j, count - 1)];
      for (std::int64_t c = 0; c < index_dim; ++c) to[c * panel_keys] = from[c];
    }
  }
  /// Keys of the tile rounded up to whole panels: the row stride of dots().
  std::int64_t stride() const { return tile_panels_ * panel_keys; }

  /// q . k of `q_rows` dense rows with the tile's keys, [q_rows, stride()].
  void dots(const float* q, std::int64_t q_rows, float* z) const {
    micro_.panel_dots(q, q_rows, panels_.data(), tile_panels_, z);
  }
  /// Scores of one row from its heads' dots: stride() of them.
  void combine(const float* z, const float* w, float* scores) const {
    micro_.combine_heads(z, stride(), w, heads_, relu_, stride(), scores);
    if (!scaled()) return;
    for (std::int64_t j = 0; j < stride(); ++j) scores[j] *= scales_[j];
  }

 private:
  const Micro& micro_;
  bool relu_;
  std::int64_t heads_;
  std::int64_t tile_panels_ = 0;
  Tensor key_scales_;
  float scales_[score_tile_keys] = {};  ///< of the tile's keys
  std::vector<float> panels_;
};

}  // namespace tandem::detail::cpu

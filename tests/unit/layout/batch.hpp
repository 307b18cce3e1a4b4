// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tandem/layout.hpp"

namespace tandem::testing {

using Offsets = std::vector<std::int64_t>;
using Segments = std::vector<std::vector<RowRange>>;

/// What a layout is made from, kept so that an oracle can work from the same input.
struct Batch {
  Partition partition = Partition::contiguous;
  int ranks = 1;
  Offsets cu;
  Offsets padded;  ///< as given: may be empty
  Segments segments;
  std::vector<RowRange> keys_only;

  SequenceLayout layout() const { return keys_only.empty() ? placed() : placed().keys_only(keys_only); }
  SequenceLayout placed() const {
    switch (partition) {
      case Partition::contiguous:
        return SequenceLayout::contiguous(cu, ranks, padded);
      case Partition::zigzag:
        return SequenceLayout::zigzag(cu, ranks, padded);
      case Partition::explicit_segments:
        break;
    }
    return SequenceLayout::from_segments(cu, segments, padded);
  }
  const Offsets& offsets() const { return padded.empty() ? cu : padded; }
  std::string text() const {
    std::string s = fmt::format("{} R={} cu={} padded={}", to_string(partition), ranks, cu, padded);
    for (const auto& shard : segments) {
      s += " |";
      for (const RowRange& r : shard) s += fmt::format(" [{},{})", r.begin, r.end);
    }
    if (!keys_only.empty()) s += " | keys only";
    for (const RowRange& r : keys_only) s += fmt::format(" [{},{})", r.begin, r.end);
    return s;
  }
};

using Rng = std::mt19937_64;

inline std::int64_t draw(Rng& rng, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(rng);
}

/// Shards made of random stretches, some split in two, some empty.
inline Segments random_segments(Rng& rng, int ranks, std::int64_t total) {
  Segments segments(static_cast<std::size_t>(ranks));
  const std::int64_t stretch = draw(rng, 1, 20);
  for (std::int64_t begin = 0; begin < total;) {
    const std::int64_t end = std::min(total, begin + draw(rng, 1, stretch));
    auto& shard = segments[static_cast<std::size_t>(draw(rng, 0, ranks - 1))];
    const std::int64_t middle = draw(rng, begin, end);
    shard.push_back({begin, middle});
    shard.push_back({middle, end});
    begin = end;
  }
  return segments;
}

/// Small batches that favour the awkward: empty documents, odd lengths, pads, fewer tokens than ranks.
inline Batch random_batch(Rng& rng) {
  Batch batch;
  batch.ranks = static_cast<int>(draw(rng, 1, 9));
  batch.partition = static_cast<Partition>(draw(rng, 0, 2));
  batch.cu = {0};
  const std::int64_t longest = draw(rng, 0, 3) == 0 ? 4 : 40;
  for (std::int64_t d = draw(rng, 0, 6); d > 0; --d) {
    batch.cu.push_back(batch.cu.back() + (draw(rng, 0, 3) == 0 ? 0 : draw(rng, 0, longest)));
  }
  if (draw(rng, 0, 1) == 1) {
    const std::int64_t most_pads = draw(rng, 0, 6);
    batch.padded = {0};
    for (std::size_t d = 1; d < batch.cu.size(); ++d) {
      batch.padded.push_back(batch.padded.back() + batch.cu[d] - batch.cu[d - 1] + draw(rng, 0, most_pads));
    }
    if (draw(rng, 0, 1) == 1) batch.padded.push_back(batch.padded.back() + draw(rng, 0, 12));
  }
  if (batch.partition == Partition::explicit_segments) {
    batch.segments = random_segments(rng, batch.ranks, batch.offsets().back());
  }
  if (draw(rng, 0, 2) == 0) {
    const std::int64_t total = batch.offsets().back();
    const std::int64_t longest_range = draw(rng, 1, 30);
    for (std::int64_t begin = draw(rng, 0, 20); begin < total;) {
      const std::int64_t end = std::min(total, begin + draw(rng, 0, longest_range));
      batch.keys_only.push_back({begin, end});
      begin = end + draw(rng, 0, 20);
    }
  }
  return batch;
}

/// One position of the padded stream, worked out from the definition alone.
struct Position {
  int owner = -1;
  std::int64_t local_row = -1;
  std::int64_t document = -1;
  bool real = false;
  bool key_only = false;
  RowRange visible;
};

inline bool in_slice(std::int64_t row, std::int64_t length, std::int64_t slice, std::int64_t slices) {
  return slice * length / slices <= row && row < (slice + 1) * length / slices;
}

inline int owner_by_definition(const Batch& batch, std::int64_t position) {
  const Offsets& offsets = batch.offsets();
  if (batch.partition == Partition::explicit_segments) {
    for (int r = 0; r < batch.ranks; ++r) {
      for (const RowRange& s : batch.segments[static_cast<std::size_t>(r)]) {
        if (s.begin <= position && position < s.end) return r;
      }
    }
    return -1;
  }
  if (batch.partition == Partition::contiguous) {
    for (int r = 0; r < batch.ranks; ++r) {
      if (in_slice(position, offsets.back(), r, batch.ranks)) return r;
    }
    return -1;
  }
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    if (position < offsets[d] || position >= offsets[d + 1]) continue;
    const std::int64_t length = offsets[d + 1] - offsets[d];
    for (int r = 0; r < batch.ranks; ++r) {
      if (in_slice(position - offsets[d], length, r, 2 * batch.ranks)) return r;
      if (in_slice(position - offsets[d], length, 2 * batch.ranks - 1 - r, 2 * batch.ranks)) return r;
    }
  }
  return -1;
}

inline std::vector<Position> positions_by_definition(const Batch& batch) {
  const Offsets& offsets = batch.offsets();
  std::vector<Position> all;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(batch.ranks));
  for (std::int64_t p = 0; p < offsets.back(); ++p) {
    Position position;
    position.owner = owner_by_definition(batch, p);
    position.local_row = rows[static_cast<std::size_t>(position.owner)]++;
    position.document = std::ssize(batch.cu) - 1;
    for (std::size_t d = 0; d + 1 < batch.cu.size(); ++d) {
      if (p < offsets[d] || p >= offsets[d + 1]) continue;
      position.document = static_cast<std::int64_t>(d);
      position.real = p - offsets[d] < batch.cu[d + 1] - batch.cu[d];
      for (const RowRange& r : batch.keys_only) {
        position.key_only = position.key_only || (position.real && r.begin <= p && p < r.end);
      }
      if (position.real && !position.key_only) position.visible = {offsets[d], p + 1};
    }
    all.push_back(position);
  }
  return all;
}

}  // namespace tandem::testing

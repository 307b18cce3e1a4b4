// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "tandem/plan.hpp"
#include "unit/layout/batch.hpp"

namespace tandem::testing {

inline std::string text(const ChunkTransfer& t) {
  std::string s =
      fmt::format("chunk {} peer {} step {} rows {}{}:", t.chunk, t.peer, t.step, t.rows, t.packed ? " packed" : "");
  for (const Run& r : t.runs) s += fmt::format(" {}->{}x{}", r.owner_row, r.landed_row, r.rows);
  return s;
}

template <class Transfers>
std::vector<std::string> texts(const Transfers& transfers) {
  std::vector<std::string> all;
  for (const ChunkTransfer& t : transfers) all.push_back(text(t));
  return all;
}

/// What plans must answer, worked out row by row from positions_by_definition.
class PlanOracle {
 public:
  PlanOracle(const Batch& batch, const PlanOptions& options)
      : options_(options), positions_(positions_by_definition(batch)), shards_(static_cast<std::size_t>(batch.ranks)) {
    for (std::int64_t p = 0; p < std::ssize(positions_); ++p) shards_[index(at(p).owner)].push_back(p);
    for (int r = 0; r < batch.ranks; ++r) cut_shard(r);
  }

  const Position& at(std::int64_t position) const { return positions_[index(position)]; }
  const std::vector<std::int64_t>& shard(int rank) const { return shards_[index(rank)]; }
  const std::vector<Chunk>& chunks() const { return chunks_; }

  /// Ascending positions that some query of `rank` sees.
  std::vector<std::int64_t> needed(int rank) const {
    std::vector<std::int64_t> result;
    for (std::int64_t p = 0; p < std::ssize(positions_); ++p) {
      for (const std::int64_t q : shard(rank)) {
        if (at(q).visible.begin <= p && p < at(q).visible.end) {
          result.push_back(p);
          break;
        }
      }
    }
    return result;
  }

  /// What `owner` sends `receiver`, in chunk order.
  std::vector<ChunkTransfer> transfers(int owner, int receiver, int peer, int step) const {
    const std::vector<std::int64_t> wanted = needed(receiver);
    std::vector<ChunkTransfer> result;
    for (const Chunk& c : chunks_) {
      if (c.owner != owner) continue;
      ChunkTransfer t{c.id, peer, step, 0, {}, false};
      for (std::int64_t row = c.first_row; row < c.first_row + c.rows; ++row) {
        const auto found = std::ranges::find(wanted, shard(owner)[index(row)]);
        if (found == wanted.end()) continue;
        const std::int64_t landed = found - wanted.begin();
        ++t.rows;
        if (!t.runs.empty() && t.runs.back().owner_row + t.runs.back().rows == row &&
            t.runs.back().landed_row + t.runs.back().rows == landed) {
          ++t.runs.back().rows;
        } else {
          t.runs.push_back({row, landed, 1});
        }
      }
      t.packed = std::ssize(t.runs) > options_.max_runs;
      if (t.rows > 0) result.push_back(t);
    }
    return result;
  }

  std::vector<ChunkTransfer> arrivals(int rank) const {
    const int ranks = static_cast<int>(shards_.size());
    std::vector<ChunkTransfer> all;
    for (int step = 0; step < ranks; ++step) {
      const int owner = (rank - step + ranks) % ranks;
      for (const ChunkTransfer& t : transfers(owner, rank, owner, step)) all.push_back(t);
    }
    return all;
  }

  std::vector<ChunkTransfer> departures(int rank) const {
    const int ranks = static_cast<int>(shards_.size());
    std::vector<ChunkTransfer> all;
    for (int step = 1; step < ranks; ++step) {
      const int receiver = (rank + step) % ranks;
      for (const ChunkTransfer& t : transfers(rank, receiver, receiver, step)) all.push_back(t);
    }
    return all;
  }

  /// The chunk that holds a position.
  ChunkId chunk_of(std::int64_t position) const {
    for (const Chunk& c : chunks_) {
      const std::int64_t row = at(position).local_row;
      if (c.owner == at(position).owner && c.first_row <= row && row < c.first_row + c.rows) return c.id;
    }
    return -1;
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  void cut_shard(int rank) {
    const std::vector<std::int64_t>& rows = shard(rank);
    std::int64_t first = 0;
    for (std::int64_t row = 0; row < std::ssize(rows); ++row) {
      const std::int64_t size = row + 1 - first;
      const bool last = row + 1 == std::ssize(rows);
      const bool segment_ends = last || rows[index(row + 1)] != rows[index(row)] + 1;
      if (last || size == options_.chunk_tokens || (segment_ends && 2 * size >= options_.chunk_tokens)) {
        chunks_.push_back({static_cast<ChunkId>(chunks_.size()), rank, first, size});
        first = row + 1;
      }
    }
  }

  PlanOptions options_;
  std::vector<Position> positions_;
  std::vector<std::vector<std::int64_t>> shards_;  ///< positions of each rank's local rows
  std::vector<Chunk> chunks_;
};

}  // namespace tandem::testing

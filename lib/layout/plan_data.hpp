// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/plan.hpp"

namespace tandem::detail {

/// Consecutive needed rows: global [begin, end) lands at landed_row and after.
struct NeededRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t landed_row = 0;
};

/// All that a Plan answers. The members below are filled from top to bottom, each from those above it.
struct PlanData {
  PlanData(const SequenceLayout& of_layout, int of_rank, const PlanOptions& with)
      : layout(of_layout), rank(of_rank), options(with) {}

  SequenceLayout layout;
  int rank;
  PlanOptions options;
  std::uint64_t hash = 0;

  std::vector<NeededRange> needed;  ///< ascending in both numberings
  std::int64_t landed_rows = 0;
  std::vector<std::int64_t> key_begin;
  std::vector<std::int64_t> key_end;  ///< never descends

  std::vector<Chunk> chunks;
  std::vector<std::size_t> chunk_offset;  ///< ranks + 1: chunks of an owner
  std::vector<ChunkTransfer> arrivals;
  std::vector<std::int32_t> arrival_of_chunk;  ///< index into arrivals, or -1
  std::vector<ChunkTransfer> departures;
  std::int64_t received_rows = 0;
  std::int64_t sent_rows = 0;

  std::vector<IndexerStep> steps;
  std::vector<RowRange> blocks;
  std::vector<ChunkId> final_chunks;      ///< block by block
  std::vector<std::size_t> final_offset;  ///< blocks + 1

  std::int64_t rows() const { return static_cast<std::int64_t>(key_end.size()); }
  std::span<const Chunk> chunks_of(int owner) const {
    const auto o = static_cast<std::size_t>(owner);
    return std::span(chunks).subspan(chunk_offset[o], chunk_offset[o + 1] - chunk_offset[o]);
  }
};

/// Of each document the rows from its start to the last query of `rank`, as few ranges as possible.
std::vector<NeededRange> needed_rows(const SequenceLayout& layout, int rank);
void fill_visible_keys(PlanData& plan);
void fill_chunks(PlanData& plan);
void fill_transfers(PlanData& plan);
std::vector<IndexerStep> make_indexer_steps(const PlanData& plan);
void fill_query_blocks(PlanData& plan);

/// -1 if the position is not among `needed`.
std::int64_t landed_row(const std::vector<NeededRange>& needed, std::int64_t position);

}  // namespace tandem::detail

namespace tandem {

struct Plan::Data : detail::PlanData {
  using PlanData::PlanData;
};

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tandem/layout.hpp"

namespace tandem {

/// Index into Plan::chunks(), the same on every rank.
using ChunkId = std::int32_t;

/// A stretch of an owner's shard: local rows [first_row, first_row + rows) of rank `owner`.
struct Chunk {
  ChunkId id = 0;
  int owner = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

/// Rows of a chunk that are consecutive in the owner's shard and in a receiver's landed rows.
struct Run {
  std::int64_t owner_row = 0;   ///< first row, counted in the owner's local rows
  std::int64_t landed_row = 0;  ///< where it lands at the receiver
  std::int64_t rows = 0;
};

/// What of one chunk travels between its owner and one receiver: owner to receiver in a gather, back in a reduction.
struct ChunkTransfer {
  ChunkId chunk = 0;
  int peer = 0;  ///< the other side: the owner in arrivals(), the receiver in departures()
  int step = 0;  ///< ring step; 0 is the rank itself
  std::int64_t rows = 0;
  std::vector<Run> runs;  ///< ascending in both numberings, never empty
  /// True if there are too many runs to move one by one: they travel as one block and a copy places them.
  bool packed = false;
};

/// One call of the indexer: which local rows look at which landed keys, and whether their top-k state starts and ends
/// here. Over all steps of a row, each landed key that it sees is looked at exactly once.
struct IndexerStep {
  std::vector<RowRange> rows;   ///< local rows, ascending
  std::vector<RowRange> keys;   ///< landed rows, ascending, each seen by one of `rows`; bounds of each row still apply
  std::vector<ChunkId> chunks;  ///< chunks that bring those keys, in arrival order: wait for these
  bool first = true;            ///< these rows have no state yet
  bool last = true;             ///< these rows' lists are complete after this step
  std::int64_t row_count() const noexcept;
};

struct PlanOptions {
  std::int64_t chunk_tokens = 1024;  ///< most rows of a chunk, pads included
  std::int64_t carry_rows = 256;     ///< most rows that look at local keys before the rest is here, keeping their state
  std::int64_t block_rows = 256;     ///< most rows of a query block in backward
  std::int64_t max_runs = 16;        ///< a transfer with more runs than this is packed
};

/// Everything that gather, reduce and the pipelines need to know about a batch, computed from its layout on every rank
/// alike, without communication. Immutable; a copy shares the data; any thread may read it. Rows, positions, ranks,
/// chunks and blocks out of range are invalid_argument.
///
/// *Needed rows* of a rank are those that one of its queries sees: of each document, all up to the rank's last query in
/// it. They land in one buffer, compact, ascending in global position; their index there is the *landed row*.
///
/// Cost: time and memory grow with the segments of the layout, with this rank's rows, and with what it sends and
/// receives, counted in runs. A million tokens in one document over 64 ranks take about a millisecond.
class TANDEM_EXPORT Plan {
 public:
  /// The plan as `rank` of the layout sees it. Throws invalid_argument (rank out of range, an option below 1).
  Plan(const SequenceLayout& layout, int rank, const PlanOptions& options = {});

  const SequenceLayout& layout() const noexcept;
  int rank() const noexcept;
  int ranks() const noexcept;
  const PlanOptions& options() const noexcept;
  /// Of layout and options, not of the rank: equal on all ranks that agree.
  std::uint64_t hash() const noexcept;

  /// Local rows of this rank.
  std::int64_t rows() const noexcept;
  std::int64_t landed_rows() const noexcept;
  std::int64_t to_global(std::int64_t landed_row) const;
  /// -1 if the row is not needed here.
  std::int64_t to_landed(std::int64_t position) const;
  /// Per local row, the landed rows [begin, end) that it sees: rows() entries each. begin == end for rows that see
  /// none: pads and keys alone. Ends never descend from one row to the next, nor do begins among rows that see some.
  std::span<const std::int64_t> key_begin() const noexcept;
  std::span<const std::int64_t> key_end() const noexcept;

  /// All chunks of all owners, owner by owner; together all rows of all shards. A chunk ends when it has chunk_tokens
  /// rows, or with a segment of the shard if it has half as many: slices of long documents have chunks of their own,
  /// which become final on their own, and short documents share.
  std::span<const Chunk> chunks() const noexcept;
  std::span<const Chunk> chunks_of(int owner) const;

  /// What this rank receives, in arrival order: its own chunks (step 0), then step t = 1..R-1 from rank r - t. Only
  /// chunks of which it needs a row.
  std::span<const ChunkTransfer> arrivals() const noexcept;
  /// What this rank sends, in the order in which receivers expect it: step t goes to rank r + t. Own rows are not in
  /// it. In a reduction they come back: contributions to a chunk are added in this order, own rows last.
  std::span<const ChunkTransfer> departures() const noexcept;
  /// The arrival of a chunk, or null if no row of it is needed here.
  const ChunkTransfer* arrival(ChunkId chunk) const;

  std::int64_t received_rows() const noexcept;  ///< rows of other ranks that land here
  std::int64_t sent_rows() const noexcept;      ///< rows this rank sends, counted once per receiver

  /// In the order to run them; steps without rows are left out.
  ///
  /// First, rows that see only own keys, or none (pads). Second, up to carry_rows of the others over the own keys they
  /// see, last = false: those that see most of them, and of equals the later ones. Then all further rows over all they
  /// see, in at most four steps, by the quarter of the received rows in which the last of their keys arrives: early
  /// slices of a shard need not wait for the whole gather. Among these is the step that ends the carried rows, over the
  /// keys of others, first = false. They are ordered by the last chunk they wait for; of equals the carried rows lead.
  std::span<const IndexerStep> indexer_steps() const noexcept;
  /// Blocks of at most block_rows local rows, descending in global position. They begin and end with rows that see
  /// keys, and rows outside them see none.
  std::span<const RowRange> query_blocks() const noexcept;
  /// Chunks of which this rank needs rows and which no query of a later block sees, in arrival order. Each chunk of
  /// arrivals() is final after exactly one block.
  std::span<const ChunkId> final_after(std::size_t block) const;

 private:
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace tandem

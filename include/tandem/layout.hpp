// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/error.hpp"
#include "tandem/export.hpp"

namespace tandem {

/// Rows [begin, end).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const noexcept { return end - begin; }
  bool empty() const noexcept { return end <= begin; }
  bool operator==(const RowRange&) const = default;
};

enum class Partition { contiguous, zigzag, explicit_segments };
TANDEM_EXPORT const char* to_string(Partition partition) noexcept;

/// Who holds which tokens of a batch of packed documents.
///
/// A *global position* is a row of the padded stream: document i occupies [padded[i], padded[i+1]) of it, its real
/// tokens come first, the rest are pad rows. Pad rows are nobody's keys and see none. A *local row* is a row of one
/// rank's shard; a shard is the rank's segments one after another. Immutable; a copy shares the data; built once per
/// batch on the host; any thread may read it. Ranks, local rows and positions out of range are invalid_argument.
class TANDEM_EXPORT SequenceLayout {
 public:
  /// `cu_seqlens`: documents + 1 offsets of the real tokens, starting at 0, never descending (repeated offsets are
  /// empty documents). `cu_seqlens_padded`: the same of the padded stream, each document at least as long; empty means
  /// no pads; it may have one more entry than cu_seqlens, the rows after the last document (the tail) being pads. No
  /// documents, no rows and fewer rows than ranks are legal. Throws invalid_argument naming the offending entry.
  ///
  /// contiguous: rank r holds [floor(r L/R), floor((r+1) L/R)) of the padded stream of L rows.
  static SequenceLayout contiguous(std::span<const std::int64_t> cu_seqlens, int ranks,
                                   std::span<const std::int64_t> cu_seqlens_padded = {});
  /// zigzag: each padded document of L rows is cut into 2R slices, slice i = [floor(i L/2R), floor((i+1) L/2R)); rank r
  /// holds slices r and 2R-1-r of every document. The tail is cut like one more document. Agrees with Megatron-Core
  /// where L is a multiple of 2R.
  static SequenceLayout zigzag(std::span<const std::int64_t> cu_seqlens, int ranks,
                               std::span<const std::int64_t> cu_seqlens_padded = {});
  /// `segments[r]`: global ranges of rank r, in ascending order; empty ranges are ignored. Together they must cover the
  /// padded stream exactly once, or the error names a position that is missing or owned twice. Uneven and empty shards
  /// are legal.
  static SequenceLayout from_segments(std::span<const std::int64_t> cu_seqlens,
                                      const std::vector<std::vector<RowRange>>& segments,
                                      std::span<const std::int64_t> cu_seqlens_padded = {});

  /// The same layout, but the rows at these global positions are keys alone: as queries they see nothing, like pads,
  /// and get no loss; other rows see them as before. For what was computed earlier, say, or a prompt that is not
  /// trained on. Ranges in ascending order; pads and empty ranges in them change nothing. Replaces those of an earlier
  /// call. Throws invalid_argument naming the range.
  SequenceLayout keys_only(std::span<const RowRange> positions) const;

  /// How the layout was made.
  Partition partition() const noexcept;
  int ranks() const noexcept;
  /// Counts empty documents too.
  std::int64_t documents() const noexcept;
  /// Rows of the padded stream.
  std::int64_t total_rows() const noexcept;
  /// Rows that are tokens.
  std::int64_t real_rows() const noexcept;
  /// Of those, the ones that are not keys alone: what losses are averaged over.
  std::int64_t query_rows() const noexcept;
  /// Positions of tokens that are keys alone: non-empty, ascending ranges that do not touch within a document.
  std::span<const RowRange> keys_only() const noexcept;
  std::span<const std::int64_t> cu_seqlens() const noexcept;
  /// documents + 1 entries, plus one if rows follow the last document. Equal to cu_seqlens() where there are no pads.
  std::span<const std::int64_t> cu_seqlens_padded() const noexcept;

  /// Local rows of `rank`, pads included.
  std::int64_t rows(int rank) const;
  /// Non-empty global ranges of `rank`, ascending; adjacent ones are merged.
  std::span<const RowRange> segments(int rank) const;
  /// Ascends with the local row. O(log) in the number of the rank's segments.
  std::int64_t global_position(int rank, std::int64_t local_row) const;
  /// The rank that holds a global position, and its local row there. O(log) in the number of segments.
  int owner(std::int64_t position) const;
  std::int64_t local_row(std::int64_t position) const;
  /// The document of a position; documents() for the tail. Never a document without rows.
  std::int64_t document(std::int64_t position) const;
  bool is_real(std::int64_t position) const;
  /// Keys a query at `position` sees, as global positions: from the start of its document up to itself; empty for pads,
  /// the tail, and rows that are keys alone.
  RowRange visible(std::int64_t position) const;

  /// Layouts are equal if documents, pads, keys alone and every rank's rows are the same, however they were made:
  /// partition() does not count. Equal layouts have equal hashes, on every machine.
  std::uint64_t hash() const noexcept;
  bool operator==(const SequenceLayout& other) const noexcept;
  /// "zigzag over 4 ranks, 3 documents, 1024 rows (1000 real)".
  std::string describe() const;

 private:
  struct Data;
  explicit SequenceLayout(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

}  // namespace tandem

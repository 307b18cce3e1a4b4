// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/layout.hpp"

namespace tandem::detail {

[[noreturn]] inline void reject(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

/// Consecutive rows of the padded stream that one rank holds, and where they begin in its shard.
struct Piece {
  std::int64_t begin = 0;
  int owner = 0;
  std::int64_t local_row = 0;
  bool operator==(const Piece&) const = default;
};

/// The documents of a batch, checked: `padded` has an entry more than `cu` only if rows follow the last document.
struct Documents {
  std::vector<std::int64_t> cu;
  std::vector<std::int64_t> padded;
  std::int64_t total_rows() const { return padded.back(); }
  /// Documents, and the rows after the last one as if they were one more.
  std::size_t stretches() const { return padded.size() - 1; }
};

/// Throws invalid_argument naming the entry.
Documents checked_documents(std::span<const std::int64_t> cu, std::span<const std::int64_t> padded);
void check_ranks(int ranks);

/// floor(i * length / n) for 0 <= i <= n, without overflow for any length.
inline std::int64_t slice_begin(std::int64_t length, std::int64_t i, std::int64_t n) {
  // The remainders are below 2^32 (n is at most twice an int), so their product fits 64 bits unsigned.
  const auto rest = static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(length % n);
  return i * (length / n) + static_cast<std::int64_t>(rest / static_cast<std::uint64_t>(n));
}

}  // namespace tandem::detail

namespace tandem {

struct SequenceLayout::Data {
  /// `pieces`: ascending, non-empty, covering the padded stream; local rows and merging are done here. `silent`: as
  /// keys_only() answers.
  Data(Partition how, int rank_count, detail::Documents docs, const std::vector<detail::Piece>& pieces,
       std::vector<RowRange> silent = {});

  std::span<const RowRange> segments_of(int rank) const;
  /// The piece that holds a position.
  const detail::Piece& piece_at(std::int64_t position) const;
  std::int64_t document_at(std::int64_t position) const;
  RowRange real_rows_of(std::int64_t document) const;
  bool is_key_only(std::int64_t position) const;
  void check_position(std::int64_t position) const;
  void check_rank(int rank) const;

  Partition partition;
  int ranks;
  detail::Documents documents;
  std::vector<detail::Piece> pieces;
  std::vector<RowRange> segments;  ///< rank by rank
  std::vector<std::int64_t> segment_local_row;
  std::vector<std::size_t> segment_offset;  ///< ranks + 1
  std::vector<std::int64_t> rows;
  std::vector<RowRange> keys_only;
  std::uint64_t hash;
};

}  // namespace tandem

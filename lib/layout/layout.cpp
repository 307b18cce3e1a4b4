// SPDX-License-Identifier: Apache-2.0
#include "tandem/layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.hpp"
#include "layout/layout_data.hpp"

namespace tandem {
namespace {

std::string counted(std::int64_t n, const char* noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

std::vector<detail::Piece> merged(const std::vector<detail::Piece>& pieces) {
  std::vector<detail::Piece> result;
  result.reserve(pieces.size());
  for (const detail::Piece& p : pieces) {
    if (result.empty() || result.back().owner != p.owner) result.push_back(p);
  }
  return result;
}

std::uint64_t hash_of(int ranks, const detail::Documents& docs, const std::vector<detail::Piece>& pieces,
                      const std::vector<RowRange>& keys_only) {
  detail::Hash hash;
  hash.combine("tandem layout 0").combine(ranks).combine_range(docs.cu).combine_range(docs.padded);
  for (const detail::Piece& p : pieces) hash.combine(p.begin).combine(p.owner);
  for (const RowRange& r : keys_only) hash.combine("keys only").combine(r.begin).combine(r.end);
  return hash.value();
}

}  // namespace

const char* to_string(Partition partition) noexcept {
  switch (partition) {
    case Partition::contiguous:
      return "contiguous";
    case Partition::zigzag:
      return "zigzag";
    case Partition::explicit_segments:
      return "explicit segments";
  }
  return "unknown";
}

SequenceLayout::Data::Data(Partition how, int rank_count, detail::Documents docs,
                           const std::vector<detail::Piece>& unmerged, std::vector<RowRange> silent)
    : partition(how),
      ranks(rank_count),
      documents(std::move(docs)),
      pieces(merged(unmerged)),
      segments(pieces.size()),
      segment_local_row(pieces.size()),
      segment_offset(static_cast<std::size_t>(rank_count) + 1),
      rows(static_cast<std::size_t>(rank_count)),
      keys_only(std::move(silent)),
      hash(hash_of(ranks, documents, pieces, keys_only)) {
  for (const detail::Piece& p : pieces) ++segment_offset[static_cast<std::size_t>(p.owner) + 1];
  for (std::size_t r = 0; r < rows.size(); ++r) segment_offset[r + 1] += segment_offset[r];
  std::vector<std::size_t> next(segment_offset.begin(), segment_offset.end() - 1);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    detail::Piece& p = pieces[i];
    const auto owner = static_cast<std::size_t>(p.owner);
    const std::int64_t end = i + 1 < pieces.size() ? pieces[i + 1].begin : documents.total_rows();
    p.local_row = rows[owner];
    segments[next[owner]] = {p.begin, end};
    segment_local_row[next[owner]] = p.local_row;
    ++next[owner];
    rows[owner] += end - p.begin;
  }
}

std::span<const RowRange> SequenceLayout::Data::segments_of(int rank) const {
  check_rank(rank);
  const auto r = static_cast<std::size_t>(rank);
  return std::span(segments).subspan(segment_offset[r], segment_offset[r + 1] - segment_offset[r]);
}

const detail::Piece& SequenceLayout::Data::piece_at(std::int64_t position) const {
  check_position(position);
  const auto next = std::upper_bound(pieces.begin(), pieces.end(), position,
                                     [](std::int64_t p, const detail::Piece& piece) { return p < piece.begin; });
  return *(next - 1);
}

std::int64_t SequenceLayout::Data::document_at(std::int64_t position) const {
  check_position(position);
  // Of documents that begin at the same row, all but the last are without rows.
  const std::vector<std::int64_t>& padded = documents.padded;
  return std::upper_bound(padded.begin(), padded.end(), position) - padded.begin() - 1;
}

RowRange SequenceLayout::Data::real_rows_of(std::int64_t document) const {
  const auto d = static_cast<std::size_t>(document);
  if (d + 1 >= documents.cu.size()) return {};
  const std::int64_t begin = documents.padded[d];
  return {begin, begin + documents.cu[d + 1] - documents.cu[d]};
}

bool SequenceLayout::Data::is_key_only(std::int64_t position) const {
  const auto next = std::upper_bound(keys_only.begin(), keys_only.end(), position,
                                     [](std::int64_t p, const RowRange& r) { return p < r.begin; });
  return next != keys_only.begin() && position < (next - 1)->end;
}

void SequenceLayout::Data::check_position(std::int64_t position) const {
  if (position < 0 || position >= documents.total_rows()) {
    detail::reject(fmt::format("position {} is outside the {} rows of the stream", position, documents.total_rows()));
  }
}

void SequenceLayout::Data::check_rank(int rank) const {
  if (rank < 0 || rank >= ranks) detail::reject(fmt::format("rank {} is outside the layout's {} ranks", rank, ranks));
}

Partition SequenceLayout::partition() const noexcept { return data_->partition; }
int SequenceLayout::ranks() const noexcept { return data_->ranks; }
std::int64_t SequenceLayout::documents() const noexcept { return std::ssize(data_->documents.cu) - 1; }
std::int64_t SequenceLayout::total_rows() const noexcept { return data_->documents.total_rows(); }
std::int64_t SequenceLayout::real_rows() const noexcept { return data_->documents.cu.back(); }
std::span<const RowRange> SequenceLayout::keys_only() const noexcept { return data_->keys_only; }
std::int64_t SequenceLayout::query_rows() const noexcept {
  std::int64_t rows = real_rows();
  for (const RowRange& r : keys_only()) rows -= r.size();
  return rows;
}
std::span<const std::int64_t> SequenceLayout::cu_seqlens() const noexcept { return data_->documents.cu; }
std::span<const std::int64_t> SequenceLayout::cu_seqlens_padded() const noexcept { return data_->documents.padded; }

std::int64_t SequenceLayout::rows(int rank) const {
  data_->check_rank(rank);
  return data_->rows[static_cast<std::size_t>(rank)];
}

std::span<const RowRange> SequenceLayout::segments(int rank) const { return data_->segments_of(rank); }

std::int64_t SequenceLayout::global_position(int rank, std::int64_t local_row) const {
  const std::span<const RowRange> segments = data_->segments_of(rank);
  if (local_row < 0 || local_row >= rows(rank)) {
    detail::reject(fmt::format("local row {} is outside the {} rows of rank {}", local_row, rows(rank), rank));
  }
  const auto first = data_->segment_local_row.begin() +
                     static_cast<std::ptrdiff_t>(data_->segment_offset[static_cast<std::size_t>(rank)]);
  const auto next = std::upper_bound(first, first + std::ssize(segments), local_row);
  const RowRange& segment = segments[static_cast<std::size_t>(next - first - 1)];
  return segment.begin + local_row - *(next - 1);
}

int SequenceLayout::owner(std::int64_t position) const { return data_->piece_at(position).owner; }

std::int64_t SequenceLayout::local_row(std::int64_t position) const {
  const detail::Piece& piece = data_->piece_at(position);
  return piece.local_row + position - piece.begin;
}

std::int64_t SequenceLayout::document(std::int64_t position) const { return data_->document_at(position); }

bool SequenceLayout::is_real(std::int64_t position) const {
  return position < data_->real_rows_of(data_->document_at(position)).end;
}

RowRange SequenceLayout::visible(std::int64_t position) const {
  const RowRange real = data_->real_rows_of(data_->document_at(position));
  if (position >= real.end || data_->is_key_only(position)) return {};
  return {real.begin, position + 1};
}

std::uint64_t SequenceLayout::hash() const noexcept { return data_->hash; }

bool SequenceLayout::operator==(const SequenceLayout& other) const noexcept {
  if (data_ == other.data_) return true;
  const Data& a = *data_;
  const Data& b = *other.data_;
  return a.hash == b.hash && a.ranks == b.ranks && a.documents.cu == b.documents.cu &&
         a.documents.padded == b.documents.padded && a.pieces == b.pieces && a.keys_only == b.keys_only;
}

std::string SequenceLayout::describe() const {
  std::string text = fmt::format("{} over {}, {}, {} ({} real", to_string(partition()), counted(ranks(), "rank"),
                                 counted(documents(), "document"), counted(total_rows(), "row"), real_rows());
  if (query_rows() < real_rows()) text += fmt::format(", {} of them keys only", real_rows() - query_rows());
  return text + ")";
}

}  // namespace tandem

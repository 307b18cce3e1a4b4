// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "layout/layout_data.hpp"

namespace tandem {
namespace detail {
namespace {

void check_offsets(const char* name, std::span<const std::int64_t> offsets) {
  if (offsets.empty()) reject(fmt::format("{} is empty; it needs at least its leading 0", name));
  if (offsets[0] != 0) reject(fmt::format("{}[0] = {} is not 0", name, offsets[0]));
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      reject(fmt::format("{0}[{1}] = {2} is below {0}[{3}] = {4}", name, i, offsets[i], i - 1, offsets[i - 1]));
    }
  }
}

void check_segments(const std::vector<std::vector<RowRange>>& segments, std::int64_t total) {
  for (std::size_t r = 0; r < segments.size(); ++r) {
    std::int64_t previous_end = 0;
    for (std::size_t i = 0; i < segments[r].size(); ++i) {
      const RowRange& s = segments[r][i];
      const std::string name = fmt::format("segments[{}][{}] = [{}, {})", r, i, s.begin, s.end);
      if (s.end < s.begin) reject(name + " ends before it begins");
      if (s.begin < 0 || s.end > total) reject(fmt::format("{} is outside the {} rows of the stream", name, total));
      if (s.begin < previous_end) {
        reject(fmt::format("{} begins before the segment ahead of it ends, at {}", name, previous_end));
      }
      previous_end = s.end;
    }
  }
}

struct OwnedRange {
  RowRange range;
  int owner;
};

/// All non-empty ranges in ascending order; throws unless they cover [0, total) exactly once.
std::vector<OwnedRange> exact_cover(const std::vector<std::vector<RowRange>>& segments, std::int64_t total) {
  std::vector<OwnedRange> owned;
  for (std::size_t r = 0; r < segments.size(); ++r) {
    for (const RowRange& s : segments[r]) {
      if (!s.empty()) owned.push_back({s, static_cast<int>(r)});
    }
  }
  std::stable_sort(owned.begin(), owned.end(),
                   [](const OwnedRange& a, const OwnedRange& b) { return a.range.begin < b.range.begin; });
  OwnedRange covered{{0, 0}, -1};
  for (const OwnedRange& o : owned) {
    if (o.range.begin > covered.range.end) {
      reject(fmt::format("position {} is in no rank's segments", covered.range.end));
    }
    if (o.range.begin < covered.range.end) {
      reject(fmt::format("position {} is in the segments of rank {} and of rank {}", o.range.begin, covered.owner,
                         o.owner));
    }
    covered = o;
  }
  if (covered.range.end < total) reject(fmt::format("position {} is in no rank's segments", covered.range.end));
  return owned;
}

}  // namespace

Documents checked_documents(std::span<const std::int64_t> cu, std::span<const std::int64_t> padded) {
  check_offsets("cu_seqlens", cu);
  Documents docs;
  docs.cu.assign(cu.begin(), cu.end());
  if (padded.empty()) {
    docs.padded = docs.cu;
    return docs;
  }
  check_offsets("cu_seqlens_padded", padded);
  if (padded.size() != cu.size() && padded.size() != cu.size() + 1) {
    reject(fmt::format("cu_seqlens_padded has {} entries; cu_seqlens has {}, so it must have as many or one more",
                       padded.size(), cu.size()));
  }
  for (std::size_t i = 1; i < cu.size(); ++i) {
    const std::int64_t real = cu[i] - cu[i - 1];
    const std::int64_t room = padded[i] - padded[i - 1];
    if (room < real) {
      reject(fmt::format("cu_seqlens_padded[{}] = {} leaves {} rows for document {} of {} tokens", i, padded[i], room,
                         i - 1, real));
    }
  }
  docs.padded.assign(padded.begin(), padded.end());
  if (padded.size() > cu.size() && padded[cu.size()] == padded[cu.size() - 1]) docs.padded.pop_back();
  return docs;
}

void check_ranks(int ranks) {
  if (ranks < 1) reject(fmt::format("ranks = {} is below 1", ranks));
}

}  // namespace detail

SequenceLayout SequenceLayout::contiguous(std::span<const std::int64_t> cu_seqlens, int ranks,
                                          std::span<const std::int64_t> cu_seqlens_padded) {
  detail::check_ranks(ranks);
  detail::Documents docs = detail::checked_documents(cu_seqlens, cu_seqlens_padded);
  const std::int64_t total = docs.total_rows();
  std::vector<detail::Piece> pieces;
  for (int r = 0; r < ranks; ++r) {
    const std::int64_t begin = detail::slice_begin(total, r, ranks);
    if (begin < detail::slice_begin(total, std::int64_t{r} + 1, ranks)) pieces.push_back({begin, r, 0});
  }
  return SequenceLayout(std::make_shared<Data>(Partition::contiguous, ranks, std::move(docs), pieces));
}

SequenceLayout SequenceLayout::zigzag(std::span<const std::int64_t> cu_seqlens, int ranks,
                                      std::span<const std::int64_t> cu_seqlens_padded) {
  detail::check_ranks(ranks);
  detail::Documents docs = detail::checked_documents(cu_seqlens, cu_seqlens_padded);
  const std::int64_t slices = std::int64_t{ranks} * 2;
  std::vector<detail::Piece> pieces;
  for (std::size_t d = 0; d < docs.stretches(); ++d) {
    const std::int64_t base = docs.padded[d];
    const std::int64_t length = docs.padded[d + 1] - base;
    if (length == 0) continue;
    for (std::int64_t i = 0; i < slices; ++i) {
      const std::int64_t begin = detail::slice_begin(length, i, slices);
      if (begin == detail::slice_begin(length, i + 1, slices)) continue;
      pieces.push_back({base + begin, static_cast<int>(std::min(i, slices - 1 - i)), 0});
    }
  }
  return SequenceLayout(std::make_shared<Data>(Partition::zigzag, ranks, std::move(docs), pieces));
}

SequenceLayout SequenceLayout::from_segments(std::span<const std::int64_t> cu_seqlens,
                                             const std::vector<std::vector<RowRange>>& segments,
                                             std::span<const std::int64_t> cu_seqlens_padded) {
  if (segments.empty()) detail::reject("segments is empty; it needs one list for each rank");
  detail::Documents docs = detail::checked_documents(cu_seqlens, cu_seqlens_padded);
  detail::check_segments(segments, docs.total_rows());
  std::vector<detail::Piece> pieces;
  for (const detail::OwnedRange& o : detail::exact_cover(segments, docs.total_rows())) {
    pieces.push_back({o.range.begin, o.owner, 0});
  }
  return SequenceLayout(
      std::make_shared<Data>(Partition::explicit_segments, static_cast<int>(segments.size()), std::move(docs), pieces));
}

SequenceLayout SequenceLayout::keys_only(std::span<const RowRange> positions) const {
  std::int64_t previous_end = 0;
  std::vector<RowRange> silent;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const RowRange& r = positions[i];
    if (r.begin < previous_end || r.end < r.begin || r.end > total_rows()) {
      detail::reject(fmt::format("keys only [{}] = [{}, {}): ranges must ascend, within the {} rows of the stream", i,
                                 r.begin, r.end, total_rows()));
    }
    previous_end = r.end;
    if (r.empty()) continue;
    for (std::int64_t d = document(r.begin); d < documents(); ++d) {
      const RowRange real = data_->real_rows_of(d);
      if (real.begin >= r.end) break;
      const RowRange part{std::max(r.begin, real.begin), std::min(r.end, real.end)};
      if (part.empty()) continue;
      if (part.begin > real.begin && !silent.empty() && silent.back().end == part.begin) {
        silent.back().end = part.end;
      } else {
        silent.push_back(part);
      }
    }
  }
  return SequenceLayout(
      std::make_shared<Data>(data_->partition, data_->ranks, data_->documents, data_->pieces, std::move(silent)));
}

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tandem/export.hpp"

namespace tandem {

enum class SpanKind : std::uint8_t { compute, transfer, wait };
TANDEM_EXPORT const char* to_string(SpanKind kind) noexcept;

/// Something that took time on one rank. Names: gather/<field>/<chunk>, reduce/<field>/<chunk>, wait/<field>/<chunk>,
/// compute/indexer/<step>, compute/attention, compute/backward/<block>.
struct Span {
  SpanKind kind = SpanKind::compute;
  std::string name;
  std::string track;          ///< the stream, or "from rank 2"
  std::int64_t begin_ns = 0;  ///< steady clock of the recording rank
  std::int64_t end_ns = 0;
  std::uint64_t bytes = 0;  ///< transfers only
  std::string path;         ///< transfers only: the transport
  std::int64_t duration_ns() const noexcept { return end_ns - begin_ns; }
};

/// Nanoseconds of the steady clock.
TANDEM_EXPORT std::int64_t now_ns() noexcept;

/// Records the spans of one rank. Any thread may add.
class TANDEM_EXPORT Trace {
 public:
  explicit Trace(int rank) : rank_(rank) {}
  int rank() const noexcept { return rank_; }
  void add(Span span);
  std::vector<Span> spans() const;
  void clear();

 private:
  int rank_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

/// What the spans say about overlap, in nanoseconds. Union lengths: overlapping spans of a kind count once.
struct OverlapSummary {
  std::int64_t compute_ns = 0;   ///< |union of compute|
  std::int64_t transfer_ns = 0;  ///< |union of transfers from other ranks|
  std::int64_t overlap_ns = 0;   ///< |compute and transfer at once|
  std::int64_t exposed_ns = 0;   ///< sum of the stalls: all wait spans. What "exposed" means everywhere in tandem
};
TANDEM_EXPORT OverlapSummary summarize(std::span<const Span> spans);

/// The spans of one rank with what aligns its clock: ns to add to get rank 0's.
struct RankSpans {
  int rank = 0;
  std::int64_t clock_offset_ns = 0;
  std::vector<Span> spans;
};

/// Trace-event JSON for ui.perfetto.dev: one process row per rank, one thread row per track, times in microseconds from
/// the earliest span. Every name is escaped.
TANDEM_EXPORT std::string perfetto_json(std::span<const RankSpans> ranks);

/// Bytes for the wire, and back. decode throws invalid_argument on anything encode did not write.
TANDEM_EXPORT std::string encode_spans(const RankSpans& spans);
TANDEM_EXPORT RankSpans decode_spans(const std::string& bytes);

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tandem/trace.hpp"
#include "trace/json_string.hpp"

namespace tandem {
namespace {

using detail::json_string;

// A row of the viewer. Its complete events must nest: the viewer drops those that overlap in part.
class Lane {
 public:
  explicit Lane(std::int64_t id) : id_(id) {}
  std::int64_t id() const { return id_; }

  // Spans are offered by ascending begin, longer ones first.
  bool take(const Span& span) {
    while (!open_ends_.empty() && open_ends_.back() <= span.begin_ns) open_ends_.pop_back();
    if (!open_ends_.empty() && open_ends_.back() < span.end_ns) return false;
    open_ends_.push_back(span.end_ns);
    return true;
  }

 private:
  std::int64_t id_;
  std::vector<std::int64_t> open_ends_;
};

class Writer {
 public:
  Writer(std::int64_t origin_ns, std::int64_t first_thread_id)
      : origin_ns_(origin_ns), next_thread_id_(first_thread_id) {}

  void add_rank(const RankSpans& rank) {
    const std::string name = json_string("rank " + std::to_string(rank.rank));
    event(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{}}})", rank.rank, name);
    event(R"("ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}})", rank.rank, rank.rank);
    std::vector<const Span*> ordered;
    for (const Span& span : rank.spans) ordered.push_back(&span);
    std::stable_sort(ordered.begin(), ordered.end(), [](const Span* a, const Span* b) {
      return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
    });
    std::map<std::string, std::vector<Lane>> tracks;
    for (const Span* span : ordered) add_span(rank, *span, lane_for(rank.rank, *span, tracks[span->track]));
  }

  std::string finish() && { return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + std::move(events_) + "\n]}\n"; }

 private:
  std::int64_t lane_for(int rank, const Span& span, std::vector<Lane>& lanes) {
    for (Lane& lane : lanes) {
      if (lane.take(span)) return lane.id();
    }
    // Thread ids are unique in the whole document: the viewer takes equal ones of two processes for one thread.
    const std::int64_t id = next_thread_id_++;
    lanes.emplace_back(id).take(span);
    const std::string name = lanes.size() == 1 ? span.track : fmt::format("{} ({})", span.track, lanes.size());
    event(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}})", rank, id, json_string(name));
    event(R"("ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}})", rank, id, id);
    return id;
  }

  void add_span(const RankSpans& rank, const Span& span, std::int64_t thread_id) {
    const std::string args = span.kind == SpanKind::transfer
                                 ? fmt::format(R"("bytes":{},"path":{})", span.bytes, json_string(span.path))
                                 : std::string();
    event(R"("ph":"X","pid":{},"tid":{},"name":{},"cat":"{}","ts":{},"dur":{},"args":{{{}}})", rank.rank, thread_id,
          json_string(span.name), to_string(span.kind), microseconds(span.begin_ns + rank.clock_offset_ns - origin_ns_),
          microseconds(std::max<std::int64_t>(0, span.duration_ns())), args);
  }

  // Exact: a double would round long steady-clock times.
  static std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

  template <class... Args>
  void event(fmt::format_string<Args...> members, Args&&... args) {
    if (!events_.empty()) events_ += ",\n";
    events_.push_back('{');
    fmt::format_to(std::back_inserter(events_), members, std::forward<Args>(args)...);
    events_.push_back('}');
  }

  std::int64_t origin_ns_;
  std::int64_t next_thread_id_;
  std::string events_;
};

}  // namespace

std::string perfetto_json(std::span<const RankSpans> ranks) {
  std::int64_t origin_ns = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_rank = 0;
  for (const RankSpans& rank : ranks) {
    last_rank = std::max<std::int64_t>(last_rank, rank.rank);
    for (const Span& span : rank.spans) origin_ns = std::min(origin_ns, span.begin_ns + rank.clock_offset_ns);
  }
  // The viewer takes a thread whose id is its process's for the main thread: ids start above the ranks.
  Writer writer(origin_ns, last_rank + 1);
  for (const RankSpans& rank : ranks) writer.add_rank(rank);
  return std::move(writer).finish();
}

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include "gpu/activity/expectation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tandem::testing_activity {

namespace {

std::uint64_t bytes_of(std::int64_t rows, const FieldSpec& field, DType dtype) {
  return static_cast<std::uint64_t>(rows * field.row_elements) * size_of(dtype);
}

bool on_other_gpu(const Plan& plan, int peer, int gpus) { return peer % gpus != plan.rank() % gpus; }

}  // namespace

std::string Expectation::difference(const std::vector<Activity>& seen) const {
  std::size_t seen_kernels = 0;
  std::vector<Push> seen_pushes;
  std::vector<std::string> all, foreign;
  for (const Activity& a : seen) {
    all.push_back(a.describe());
    if (a.kind == Activity::Kind::kernel) ++seen_kernels;
    if (a.kind == Activity::Kind::copy) seen_pushes.push_back({a.bytes, a.between_gpus});
    if (a.kind == Activity::Kind::set) foreign.push_back(a.describe());
  }
  std::vector<Push> wanted = pushes;
  std::sort(wanted.begin(), wanted.end());
  std::sort(seen_pushes.begin(), seen_pushes.end());
  std::string text;
  if (seen_kernels != kernels) text += fmt::format("{} kernels, not {}; ", seen_kernels, kernels);
  if (seen_pushes != wanted)
    text += fmt::format("{} copies, other than the {} pushes; ", seen_pushes.size(), wanted.size());
  for (const std::string& f : foreign) text += fmt::format("a {}; ", f);
  return text.empty() ? "" : text + fmt::format("all that was seen: {}", fmt::join(all, " | "));
}

Expectation of_gather(const Plan& plan, const std::vector<FieldSpec>& fields, bool in_place, int gpus) {
  Expectation e;
  if (!in_place && plan.rows() > 0) {
    const auto own =
        std::any_of(plan.arrivals().begin(), plan.arrivals().end(), [](const ChunkTransfer& t) { return t.step == 0; });
    e.kernels += own ? 1 : 0;
  }
  for (const FieldSpec& field : fields) {
    for (const ChunkTransfer& t : plan.arrivals()) e.kernels += t.step > 0 && t.packed ? 1 : 0;
    for (const ChunkTransfer& t : plan.departures()) {
      const bool far = on_other_gpu(plan, t.peer, gpus);
      if (t.packed) {
        ++e.kernels;
        e.pushes.push_back({bytes_of(t.rows, field, field.dtype), far});
        continue;
      }
      for (const Run& run : t.runs) e.pushes.push_back({bytes_of(run.rows, field, field.dtype), far});
    }
  }
  return e;
}

Expectation of_reduction(const Plan& plan, const std::vector<FieldSpec>& fields, int gpus) {
  Expectation e;
  for (const FieldSpec& field : fields) {
    for (const Chunk& chunk : plan.chunks_of(plan.rank())) e.kernels += chunk.rows > 0 ? 1 : 0;
    for (const ChunkTransfer& t : plan.arrivals()) {
      if (t.step == 0) continue;
      e.kernels += t.runs.size() > 1 || field.wire != DType::f32 ? 1 : 0;
      e.pushes.push_back({bytes_of(t.rows, field, field.wire), on_other_gpu(plan, t.peer, gpus)});
    }
  }
  return e;
}

std::int64_t own_rows_begin(const Plan& plan) {
  std::int64_t begin = -1, rows = 0;
  for (const ChunkTransfer& t : plan.arrivals()) {
    if (t.step > 0) continue;
    rows += t.rows;
    for (const Run& run : t.runs) {
      const std::int64_t at = run.landed_row - run.owner_row;
      if (begin >= 0 && at != begin) return -1;
      begin = at;
    }
  }
  // A row that lands nowhere would be written over another's.
  return rows == plan.rows() ? begin : -1;
}

}  // namespace tandem::testing_activity

// SPDX-License-Identifier: Apache-2.0
#include "device/rows.hpp"

#include <cstring>
#include <vector>

#include "device/bf16.hpp"
#include "device/host/device.hpp"

namespace tandem::detail {
namespace {

void move(const RowRuns& runs, const RowMove& m) {
  for (std::int64_t r = 0; r < runs.count; ++r) {
    const RowRun& run = runs.runs[r];
    const auto* from = static_cast<const std::byte*>(m.from) + static_cast<std::size_t>(run.from) * m.from_stride;
    auto* to = static_cast<std::byte*>(m.to) + static_cast<std::size_t>(run.to) * m.to_stride;
    if (from == to && m.from_stride == m.to_stride) continue;
    if (m.from_stride == m.row_bytes && m.to_stride == m.row_bytes) {
      std::memcpy(to, from, m.row_bytes * static_cast<std::size_t>(run.rows));
      continue;
    }
    for (std::int64_t i = 0; i < run.rows; ++i, from += m.from_stride, to += m.to_stride) {
      std::memcpy(to, from, m.row_bytes);
    }
  }
}

const float* float_row(const float* base, std::size_t stride, std::int64_t row) {
  return reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(base) +
                                        static_cast<std::size_t>(row) * stride);
}

void round(const RowRuns& runs, const RowRounding& m) {
  for (std::int64_t r = 0; r < runs.count; ++r) {
    const RowRun& run = runs.runs[r];
    for (std::int64_t i = 0; i < run.rows; ++i) {
      const float* from = float_row(m.from, m.from_stride, run.from + i);
      std::uint16_t* to = m.to + (run.to + i) * m.elements;
      for (std::int64_t e = 0; e < m.elements; ++e) to[e] = bf16_from_float(from[e]);
    }
  }
}

void sum(const RowSum& s) {
  const std::int64_t n = s.elements;
  std::vector<float> sums(static_cast<std::size_t>(s.rows * n), 0.0F);
  auto row = [&](std::int64_t result_row) { return sums.data() + (result_row - s.first_row) * n; };
  for (std::int64_t a = 0; a < s.addend_count; ++a) {
    const RowAddend& addend = s.addends[a];
    const std::byte* block = static_cast<const std::byte*>(s.staging) + addend.offset;
    for (const RowRun& run : std::span(s.runs + addend.first_run, static_cast<std::size_t>(addend.runs))) {
      float* to = row(run.to);
      if (s.wire == DType::f32) {
        const auto* from = reinterpret_cast<const float*>(block) + run.from * n;
        for (std::int64_t i = 0; i < run.rows * n; ++i) to[i] += from[i];
      } else {
        const auto* from = reinterpret_cast<const std::uint16_t*>(block) + run.from * n;
        for (std::int64_t i = 0; i < run.rows * n; ++i) to[i] += bf16_to_float(from[i]);
      }
    }
  }
  for (const RowRun& run : std::span(s.own_runs.runs, static_cast<std::size_t>(s.own_runs.count))) {
    for (std::int64_t i = 0; i < run.rows; ++i) {
      const float* from = float_row(s.own, s.own_stride, run.from + i);
      float* to = row(run.to + i);
      for (std::int64_t e = 0; e < n; ++e) to[e] += from[e];
    }
  }
  for (std::int64_t i = 0; i < s.rows; ++i) {
    std::byte* to = static_cast<std::byte*>(s.result) + static_cast<std::size_t>(s.first_row + i) * s.result_stride;
    const float* from = sums.data() + i * n;
    if (s.result_type == DType::f32) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      for (std::int64_t e = 0; e < n; ++e) reinterpret_cast<std::uint16_t*>(to)[e] = bf16_from_float(from[e]);
    }
  }
}

}  // namespace

void HostStream::move_rows(const RowRuns& runs, std::span<const RowMove> moves,
                           const std::shared_ptr<const void>& keep) {
  if (runs.rows == 0 || moves.empty()) return;
  push([runs, list = std::vector<RowMove>(moves.begin(), moves.end()), keep] {
    for (const RowMove& m : list) move(runs, m);
  });
}

void HostStream::round_rows(const RowRuns& runs, const RowRounding& rounding, const std::shared_ptr<const void>& keep) {
  if (runs.rows == 0) return;
  push([runs, rounding, keep] { round(runs, rounding); });
}

void HostStream::sum_rows(const RowSum& s, const std::shared_ptr<const void>& keep) {
  if (s.rows == 0) return;
  push([s, keep] { sum(s); });
}

}  // namespace tandem::detail

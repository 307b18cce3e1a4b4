// SPDX-License-Identifier: Apache-2.0
#include "tandem/trace.hpp"

#include <chrono>
#include <utility>

namespace tandem {

const char* to_string(SpanKind kind) noexcept {
  switch (kind) {
    case SpanKind::compute:
      return "compute";
    case SpanKind::transfer:
      return "transfer";
    case SpanKind::wait:
      return "wait";
  }
  return "unknown";
}

std::int64_t now_ns() noexcept {
  const auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
}

void Trace::add(Span span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<Span> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

void Trace::clear() {
  const std::lock_guard lock(mutex_);
  spans_.clear();
}

}  // namespace tandem

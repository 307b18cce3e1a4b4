// SPDX-License-Identifier: Apache-2.0
#include "device/failure.hpp"

#include <exception>

namespace tandem::detail {
namespace {

Status failure_of(const std::string& stream, const std::string& text, int rank = -1, std::int64_t op = -1) {
  return {ErrorCode::device, "a task on stream '" + stream + "' failed: " + text, rank, op};
}

}  // namespace

void FirstFailure::keep(const Status& failure) {
  const std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = failure;
}

void FirstFailure::throw_if_failed() const {
  const std::lock_guard lock(mutex_);
  status_.throw_if_failed();
}

void run_task(const std::function<void()>& task, const std::string& stream, FirstFailure& stream_failure,
              FirstFailure& device_failure) {
  const auto keep = [&](const Status& failure) {
    stream_failure.keep(failure);
    device_failure.keep(failure);
  };
  try {
    task();
  } catch (const Error& e) {
    keep(failure_of(stream, e.what(), e.rank(), e.op()));
  } catch (const std::exception& e) {
    keep(failure_of(stream, e.what()));
  } catch (...) {
    keep(failure_of(stream, "it threw something that is no std::exception"));
  }
}

}  // namespace tandem::detail

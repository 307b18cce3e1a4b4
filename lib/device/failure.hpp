// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "tandem/error.hpp"

namespace tandem::detail {

/// Keeps the first failure it is given.
class FirstFailure {
 public:
  void keep(const Status& failure);
  void throw_if_failed() const;

 private:
  mutable std::mutex mutex_;
  Status status_;
};

/// Runs a task of the stream called `stream`; what it throws is kept for the stream and for its device.
void run_task(const std::function<void()>& task, const std::string& stream, FirstFailure& stream_failure,
              FirstFailure& device_failure);

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::testing_activity {

/// Something that a GPU did for this process.
struct Activity {
  enum class Kind { kernel, copy, set };
  Kind kind = Kind::kernel;
  std::string name;         // of a kernel
  std::uint64_t bytes = 0;  // of a copy or a set
  bool between_gpus = false;
  bool by_copy_engine = false;  // it was given to a channel of the copy engines

  std::string describe() const;
};

/// Records kernels, copies and sets through CUPTI. One at a time in a process; made before anything waits on a stream,
/// for CUPTI starts by allocating.
class ActivityRecorder {
 public:
  /// Why CUPTI cannot be used here; "" if it can. Loads it.
  static std::string missing();

  /// Throws std::runtime_error.
  ActivityRecorder();
  ~ActivityRecorder();
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;

  /// Both want the GPU idle, as far as this process goes: what runs across them may be missed.
  void start();
  std::vector<Activity> stop();
};

}  // namespace tandem::testing_activity

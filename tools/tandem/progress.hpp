// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tandem::cli {

/// Tells a waiting person how far a long computation is: "tandem: checking: 4096 of 16384 rows (12 s)". Says nothing
/// about one of less than two seconds. On a terminal the line is rewritten every two seconds, and gone at the end;
/// elsewhere there is a line after 2 s, and then each time the time has doubled.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  struct Output {
    std::function<void(std::string_view)> write;
    bool terminal = false;
    std::function<Clock::time_point()> now;
  };

  /// On stderr.
  Progress();
  /// For tests.
  explicit Progress(Output output);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// From here on it is about `what`, which has so many rows. The clock goes on.
  void start(std::string_view what, std::int64_t rows);
  /// So many rows of it are done. Writes if it is time to.
  void reach(std::int64_t done);

 private:
  static constexpr std::chrono::seconds interval{2};

  Output output_;
  Clock::time_point begin_;
  Clock::duration due_ = interval;  ///< after begin_
  std::string what_;
  std::int64_t rows_ = 0;
  bool on_screen_ = false;  ///< a line that is to be rewritten
};

}  // namespace tandem::cli

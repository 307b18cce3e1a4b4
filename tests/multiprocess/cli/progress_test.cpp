// SPDX-License-Identifier: Apache-2.0
#include "tandem/progress.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace tandem::cli {
namespace {

using std::chrono::milliseconds;

/// A progress with a clock that the test sets.
class ProgressTest : public ::testing::Test {
 protected:
  void make(bool terminal) {
    progress_.emplace(Progress::Output{[this](std::string_view text) { written_.emplace_back(text); }, terminal,
                                       [this] { return Progress::Clock::time_point(now_); }});
    progress_->start("checking", 16384);
  }
  /// What is written if so many rows are done so long after the start.
  std::string at(milliseconds time, std::int64_t rows) {
    now_ = start_ + time;
    written_.clear();
    progress_->reach(rows);
    return written();
  }
  std::string written() const {
    std::string all;
    for (const std::string& text : written_) all += text;
    return all;
  }

  const milliseconds start_{5000};
  milliseconds now_ = start_;
  std::vector<std::string> written_;
  std::optional<Progress> progress_;
};

TEST_F(ProgressTest, NothingIsSaidForTwoSeconds) {
  for (const bool terminal : {false, true}) {
    make(terminal);
    EXPECT_EQ(at(milliseconds(0), 0), "");
    EXPECT_EQ(at(milliseconds(1999), 16384), "");
    progress_.reset();
    EXPECT_EQ(written(), "");
  }
}

TEST_F(ProgressTest, LinesComeWithDoublingIntervals) {
  make(false);
  EXPECT_EQ(at(milliseconds(2000), 100), "tandem: checking: 100 of 16384 rows (2 s)\n");
  EXPECT_EQ(at(milliseconds(3999), 200), "");
  EXPECT_EQ(at(milliseconds(5000), 300), "tandem: checking: 300 of 16384 rows (5 s)\n");
  EXPECT_EQ(at(milliseconds(9999), 400), "");
  progress_->start("more", 7);
  EXPECT_EQ(at(milliseconds(9999), 0), "");
  EXPECT_EQ(at(milliseconds(12000), 5), "tandem: more: 5 of 7 rows (12 s)\n") << "the clock went on";
  written_.clear();
  progress_.reset();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressTest, ATerminalsLineIsRewrittenAndCleared) {
  make(true);
  EXPECT_EQ(at(milliseconds(3000), 100), "\r\x1b[Ktandem: checking: 100 of 16384 rows (3 s)");
  EXPECT_EQ(at(milliseconds(4999), 200), "");
  EXPECT_EQ(at(milliseconds(5000), 300), "\r\x1b[Ktandem: checking: 300 of 16384 rows (5 s)");
  EXPECT_EQ(at(milliseconds(7000), 400), "\r\x1b[Ktandem: checking: 400 of 16384 rows (7 s)");
  written_.clear();
  progress_.reset();
  EXPECT_EQ(written(), "\r\x1b[K");
}

}  // namespace
}  // namespace tandem::cli

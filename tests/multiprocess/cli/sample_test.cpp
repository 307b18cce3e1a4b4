// SPDX-License-Identifier: Apache-2.0
#include "tandem/sample.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

SequenceLayout layout_of(std::vector<std::int64_t> lengths, std::optional<std::int64_t> pad_to = {}) {
  DsaJob job;
  job.lengths = std::move(lengths);
  job.pad_to = pad_to;
  return job.layout(1);
}

std::set<std::int64_t> positions(const std::vector<RowRange>& ranges) {
  std::set<std::int64_t> all;
  std::int64_t last = -1;
  for (const RowRange& r : ranges) {
    EXPECT_GE(r.begin, last);
    last = r.end;
    for (std::int64_t p = r.begin; p < r.end; ++p) all.insert(p);
  }
  return all;
}

TEST(Sample, TakesEveryTokenIfTheBudgetAllows) {
  const SequenceLayout layout = layout_of({50, 0, 30}, 64);
  const CheckSample sample = choose_sample(layout, {}, {});
  EXPECT_EQ(sample.row_count, 80);
  EXPECT_EQ(sample.cut, "");
  EXPECT_EQ(sample.topk_stride, 1);
  for (std::int64_t p = 0; p < layout.total_rows(); ++p) {
    EXPECT_EQ(positions(sample.rows).count(p), layout.is_real(p) ? 1U : 0U) << p;
  }
  EXPECT_EQ(positions(sample.complete_keys), positions(sample.rows));
}

TEST(Sample, HoldsTheBudgetAndSaysWhatItLeftOut) {
  const SequenceLayout layout = layout_of({300, 4000, 500}, 4096);
  const CheckBudget budget{1e8, 4e8};
  const CheckSample sample = choose_sample(layout, {}, budget);
  const std::set<std::int64_t> rows = positions(sample.rows);
  EXPECT_EQ(static_cast<std::int64_t>(rows.size()), sample.row_count);
  EXPECT_GE(sample.row_count, 100);
  EXPECT_LT(sample.row_count, 800);
  EXPECT_GT(sample.topk_stride, 1);
  EXPECT_THAT(sample.cut, HasSubstr("of 4800 rows"));
  EXPECT_THAT(sample.cut, HasSubstr("top-k"));
  for (const std::int64_t p : rows) EXPECT_TRUE(layout.is_real(p));
  for (std::int64_t document = 0; document < 3; ++document) {  // some of each
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](std::int64_t p) { return layout.document(p) == document; }));
  }
}

// Gradients of a key are complete only if every query that sees it is in the sample.
TEST(Sample, CompleteKeysAreComplete) {
  const SequenceLayout layout = layout_of({300, 2000, 500});
  const CheckSample sample = choose_sample(layout, {}, {1e8, 4e8});
  const std::set<std::int64_t> rows = positions(sample.rows);
  const std::set<std::int64_t> keys = positions(sample.complete_keys);
  EXPECT_FALSE(keys.empty());
  for (const std::int64_t key : keys) {
    for (std::int64_t query = key; query < layout.total_rows() && layout.document(query) == layout.document(key);
         ++query) {
      EXPECT_EQ(rows.count(query), 1U);
    }
  }
}

TEST(Sample, OfNothingIsEmpty) {
  const CheckSample sample = choose_sample(layout_of({0, 0}), {}, {});
  EXPECT_EQ(sample.row_count, 0);
  EXPECT_EQ(sample.cut, "");
}

}  // namespace
}  // namespace tandem::cli

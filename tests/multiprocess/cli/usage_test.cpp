// SPDX-License-Identifier: Apache-2.0
#include "tandem/usage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tandem/job.hpp"

namespace tandem::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

TEST(Usage, IntegersAreWholeAndInRange) {
  EXPECT_EQ(parse_integer("--x", "12", 0, 20), 12);
  EXPECT_EQ(parse_integer("--x", "-3", -5, 20), -3);
  for (const char* bad : {"", " 1", "1 ", "+1", "1.5", "1e3", "0x10", "one", "99999999999999999999"}) {
    EXPECT_THROW(parse_integer("--x", bad, 0, 20), UsageError) << bad;
  }
  EXPECT_THROW(parse_integer("--x", "-1", 0, 20), UsageError);
  EXPECT_THROW(parse_integer("--x", "21", 0, 20), UsageError);
}

TEST(Usage, ListsHaveNoEmptyEntry) {
  EXPECT_THAT(parse_integers("--x", "0,7,3", 0, 9), ElementsAre(0, 7, 3));
  EXPECT_THAT(parse_integers("--x", "5", 0, 9), ElementsAre(5));
  for (const char* bad : {"", ",", "1,", ",1", "1,,2", "1;2", "1,10"}) {
    EXPECT_THROW(parse_integers("--x", bad, 0, 9), UsageError) << bad;
  }
}

TEST(Usage, SecondsMayBeFractions) {
  EXPECT_EQ(parse_seconds("--x", "2"), milliseconds(2000));
  EXPECT_EQ(parse_seconds("--x", "0.25"), milliseconds(250));
  for (const char* bad : {"", "0", "-1", "0.0001", "nan", "inf", "1e9", "2s"}) {
    EXPECT_THROW(parse_seconds("--x", bad), UsageError) << bad;
  }
}

TEST(Job, DefaultsAreThoseOfTheHelp) {
  const DsaJob job = make_job({}, std::nullopt);
  EXPECT_EQ(job.ranks, 4);
  EXPECT_THAT(job.lengths, ElementsAre(1024));
  EXPECT_EQ(job.shape.heads, 4);
  EXPECT_EQ(job.shape.index_heads, 2);
  EXPECT_EQ(job.shape.topk, 64);
  EXPECT_EQ(job.partition, Partition::zigzag);
  EXPECT_EQ(job.dtype, DType::f32);
  EXPECT_EQ(job.wire, DType::f32);
}

TEST(Job, ModelsCanBeOverridden) {
  DsaArguments a;
  a.model = "glm-5";
  a.topk = "7";
  const DsaJob job = make_job(a, std::nullopt);
  EXPECT_EQ(job.shape.heads, 64);
  EXPECT_EQ(job.shape.index_heads, 32);
  EXPECT_EQ(job.shape.topk, 7);
}

TEST(Job, LauncherDecidesTheNumberOfRanks) {
  EXPECT_EQ(make_job({}, LaunchedRank{1, 3}).ranks, 3);
  DsaArguments a;
  a.ranks = "4";
  EXPECT_THROW(make_job(a, LaunchedRank{1, 3}), UsageError);
  a.ranks = "3";
  EXPECT_EQ(make_job(a, LaunchedRank{1, 3}).ranks, 3);
}

TEST(Job, LayoutHasPads) {
  DsaArguments a;
  a.docs = "10,0,7";
  a.pad_to = "12";
  const SequenceLayout layout = make_job(a, std::nullopt).layout(2);
  EXPECT_EQ(layout.total_rows(), 36);
  EXPECT_EQ(layout.real_rows(), 17);
  EXPECT_EQ(layout.documents(), 3);
}

TEST(Job, PlanOptionsAreAtLeastOneForTinyBatches) {
  DsaArguments a;
  a.docs = "0,1";
  const PlanOptions options = make_job(a, std::nullopt).plan_options(4, {});
  EXPECT_GE(options.chunk_tokens, 1);
  EXPECT_GE(options.carry_rows, 1);
  EXPECT_GE(options.block_rows, 1);
}

}  // namespace
}  // namespace tandem::cli

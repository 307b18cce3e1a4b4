// SPDX-License-Identifier: Apache-2.0
#include "tandem/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DsaJob two_ranks() {
  DsaJob job;
  job.ranks = 2;
  job.lengths = {60, 0, 40};
  job.partition = Partition::contiguous;
  return job;
}

RankSummary rank_summary(std::int64_t tokens, std::uint64_t gathered, const std::string& paths) {
  RankSummary s;
  s.tokens = tokens;
  s.gathered_bytes = gathered;
  s.transfer_us = 12.5;
  s.exposed_us = 3.25;
  paths.copy(s.paths, sizeof(s.paths) - 1);
  return s;
}

CheckResult good_check() {
  CheckResult check;
  for (const char* name : {"out", "lse", "dq", "dkv", "d_index_q", "d_index_k", "d_index_w", "loss"}) {
    check.errors.push_back({name, 1e-7, 2e-5});
  }
  check.checked_rows = check.rows = 100;
  return check;
}

TEST(Report, JsonHasTheDocumentedShape) {
  const DsaJob job = two_ranks();
  Report report(job);
  const std::uint64_t row_bytes = (128 + 576) * 4;
  report.ranks = {rank_summary(50, 0, ""), rank_summary(50, 10 * row_bytes, "tcp,")};
  report.check = good_check();
  report.check->relu_near_ties = 3;
  const nlohmann::json j = report.to_json();
  EXPECT_EQ(j["ranks"], 2);
  EXPECT_EQ(j["tokens"], nlohmann::json::array({50, 50}));
  EXPECT_EQ(j["documents"], 3);
  EXPECT_EQ(j["layout"], "contiguous");
  EXPECT_EQ(j["transport"], "tcp");
  EXPECT_EQ(j["gathered_bytes"], nlohmann::json::array({0, 10 * row_bytes}));
  EXPECT_DOUBLE_EQ(j["moved_fraction"].get<double>(), 0.1);  // of 100 rows, each of which one other rank lacks
  EXPECT_EQ(j["exposed_us"], nlohmann::json::array({3.25, 3.25}));
  EXPECT_EQ(j["transfer_us"], nlohmann::json::array({12.5, 12.5}));
  EXPECT_EQ(j["paths"], nlohmann::json::array({"tcp"}));
  EXPECT_EQ(j["topk_mismatches"], 0);
  EXPECT_EQ(j["topk_near_ties"], 0);
  EXPECT_EQ(j["check"]["relu_near_ties"], 3);
  EXPECT_EQ(j["max_rel_error"].size(), 8U);
  EXPECT_DOUBLE_EQ(j["max_rel_error"]["d_index_w"].get<double>(), 1e-7);
  EXPECT_EQ(j["ok"], true);
  EXPECT_FALSE(j.contains("memory"));
}

TEST(Report, WithoutCheckErrorsAreUnknown) {
  const DsaJob job = two_ranks();
  Report report(job);
  report.ranks = {rank_summary(50, 0, ""), rank_summary(50, 0, "")};
  const nlohmann::json j = report.to_json();
  EXPECT_TRUE(j["max_rel_error"].is_null());
  EXPECT_TRUE(j["topk_mismatches"].is_null());
  EXPECT_EQ(j["moved_fraction"], 0.0);
  EXPECT_EQ(j["ok"], true);
  EXPECT_EQ(j["paths"], nlohmann::json::array());
}

TEST(Report, MovedFractionIsZeroAlone) {
  DsaJob job = two_ranks();
  job.ranks = 1;
  Report report(job);
  report.ranks = {rank_summary(100, 0, "")};
  EXPECT_EQ(report.moved_fraction(), 0.0);
}

TEST(Report, PathsAreSortedAndUnique) {
  const DsaJob job = two_ranks();
  Report report(job);
  report.ranks = {rank_summary(50, 0, "ucx,tcp,"), rank_summary(50, 0, "tcp,")};
  EXPECT_THAT(report.paths(), ::testing::ElementsAre("tcp", "ucx"));
}

TEST(Report, AnythingWrongIsNotOk) {
  const auto verdict = [](auto change) {
    CheckResult check = good_check();
    change(check);
    return check.ok();
  };
  EXPECT_TRUE(verdict([](CheckResult&) {}));
  EXPECT_TRUE(verdict([](CheckResult& c) { c.topk_near_ties = 5; }));
  EXPECT_TRUE(verdict([](CheckResult& c) { c.relu_near_ties = 5; }));
  EXPECT_FALSE(verdict([](CheckResult& c) { c.topk_mismatches = 1; }));
  EXPECT_FALSE(verdict([](CheckResult& c) { c.dead_row_faults = 1; }));
  EXPECT_FALSE(verdict([](CheckResult& c) { c.unsharded_sets_differ = true; }));
  EXPECT_FALSE(verdict([](CheckResult& c) { c.errors[3].error = 3e-5; }));
  EXPECT_FALSE(verdict([](CheckResult& c) { c.errors[3].error = INFINITY; }));
  EXPECT_FALSE(verdict([](CheckResult& c) { c.errors[3].error = NAN; }));
}

TEST(Report, InfiniteErrorsAreNullInJson) {
  const DsaJob job = two_ranks();
  Report report(job);
  report.ranks = {rank_summary(50, 0, ""), rank_summary(50, 0, "")};
  report.check = good_check();
  report.check->errors[0].error = INFINITY;
  const nlohmann::json j = report.to_json();
  EXPECT_TRUE(j["max_rel_error"]["out"].is_null());
  EXPECT_EQ(j["ok"], false);
}

TEST(Report, TextSaysWhatAPersonWantsToKnow) {
  DsaJob job = two_ranks();
  job.trace = "out.json";
  job.memory = true;
  Report report(job);
  report.ranks = {rank_summary(50, 0, ""), rank_summary(50, 2816, "tcp,")};
  report.check = good_check();
  report.check->cut = "some rows";
  report.check->relu_near_ties = 3;
  const std::string text = report.to_text();
  for (const char* part : {"2 ranks over tcp", "contiguous", "exposed", "moved", "saved", "left out: some rows",
                           "3 relu near ties", "d_index_w", "out.json: open it at https://ui.perfetto.dev", "\nok\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  report.check->topk_mismatches = 1;
  EXPECT_THAT(report.to_text(), HasSubstr("\nnot ok\n"));
}

}  // namespace
}  // namespace tandem::cli

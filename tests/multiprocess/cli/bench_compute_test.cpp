// SPDX-License-Identifier: Apache-2.0
// `tandem bench` of kernels and of steps of the operator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "refusal.hpp"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json result(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  arguments.emplace_back("--json");
  const Ended e = run_tandem(arguments);
  EXPECT_EQ(e.code, 0) << e.out << e.err;
  if (e.code != 0) return {{"results", json::array()}};
  json out = json::parse(e.out);
  EXPECT_EQ(out["ok"], true);
  EXPECT_EQ(out["kernels"], "cpu");
  EXPECT_TRUE(out["rates"].is_null()) << "the host has no floors";
  for (const json& row : out["results"]) {
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_GT(row["checked_rows"], 0) << row;
    EXPECT_GT(row["median_us"].get<double>(), 0);
    EXPECT_GE(row["p95_us"].get<double>(), row["median_us"].get<double>());
    EXPECT_GT(row["gbs"].get<double>(), 0);
    EXPECT_TRUE(row["floor_us"].is_null());
    EXPECT_EQ(row["scratch_bytes"], 0);
  }
  return out;
}

TEST(BenchKernels, TheIndexerIsRightInEveryPatternAndType) {
  for (const std::string dtype : {"bf16", "e4m3"}) {
    const json out = result({"indexer", "--seq-len", "300,700", "--queries", "40", "--index-dtype", dtype, "--pattern",
                             "random,text,ascending,equal", "-n", "2", "-w", "1"});
    ASSERT_EQ(out["results"].size(), 8U);
    EXPECT_EQ(out["index_dtype"], dtype == "e4m3" ? "f8e4m3" : "bf16");
    const json& row = out["results"][5];
    EXPECT_EQ(row["keys"], 700);
    EXPECT_EQ(row["queries"], 40);
    EXPECT_EQ(row["pattern"], "text");
    EXPECT_EQ(row["pairs"], 40 * 700);
    EXPECT_EQ(row["flops"].get<double>(), 40.0 * 700 * 2 * 2 * 128);
    EXPECT_NEAR(row["tflops"].get<double>(), row["flops"].get<double>() / row["median_us"].get<double>() / 1e6, 1e-6);
  }
}

TEST(BenchKernels, ARankOfSeveralHasItsCausalRows) {
  // Rank 0 of two has rows 0..99 and 300..399 of 400; those that see more than 64 keys are scored.
  std::int64_t pairs = 0, selected = 0;
  for (std::int64_t position = 0; position < 400; ++position) {
    if (position >= 100 && position < 300) continue;
    pairs += position + 1 > 64 ? position + 1 : 0;
    selected += std::min<std::int64_t>(position + 1, 64);
  }
  for (const std::string operation : {"indexer", "topk", "sparse-fwd", "sparse-bwd"}) {
    const json out = result({operation, "--seq-len", "400", "--share", "2,8", "-n", "2", "-w", "0"});
    ASSERT_EQ(out["results"].size(), 2U);
    const json& row = out["results"][0];
    EXPECT_EQ(row["share"], 2);
    EXPECT_EQ(row["queries"], 200);
    EXPECT_EQ(row["pairs"], operation.starts_with("sparse") ? selected : pairs);
    EXPECT_EQ(out["results"][1]["queries"], 50);
  }
}

TEST(BenchKernels, TheSelectionAloneAndTheAttentionAreRight) {
  const json selection =
      result({"topk", "--queries", "30", "--topk", "100", "--pattern", "random,text,ascending,equal", "-n", "2"});
  ASSERT_EQ(selection["results"].size(), 4U);
  EXPECT_TRUE(selection["results"][0]["tflops"].is_null());
  const json attention = result(
      {"sparse-fwd", "--seq-len", "20000", "--queries", "16", "--heads", "2", "--pattern", "random,text", "-n", "2"});
  ASSERT_EQ(attention["results"].size(), 2U);
  EXPECT_EQ(attention["shape"]["heads"], 2);
  EXPECT_NEAR(attention["results"][0]["near_share"].get<double>(), 8192.0 / 20000, 0.15);
  EXPECT_NEAR(attention["results"][1]["near_share"].get<double>(), 0.8, 0.01);
  EXPECT_EQ(attention["results"][0]["flops"].get<double>(), 16.0 * 64 * 2 * 2 * (576 + 512));
}

TEST(BenchKernels, TheBackwardIsRight) {
  const json out = result(
      {"sparse-bwd", "--seq-len", "2000", "--queries", "16", "--heads", "2", "--pattern", "random,text", "-n", "2"});
  ASSERT_EQ(out["results"].size(), 2U);
  for (const json& row : out["results"]) {
    EXPECT_EQ(row["checked_rows"], 6 + 4);
    EXPECT_EQ(row["pairs"], 16 * 64);
    EXPECT_EQ(row["flops"].get<double>(), 16.0 * 64 * 2 * 2 * (3 * 576 + 2 * 512));
    EXPECT_EQ(row["added_bytes"].get<double>(), 16.0 * 64 * 4 * 576);
    EXPECT_GT(row["added_gbs"].get<double>(), 0);
  }
}

TEST(BenchKernels, FewKeysAreTakenWhole) {
  for (const std::string operation : {"indexer", "topk", "sparse-fwd", "sparse-bwd"}) {
    const json out = result({operation, "--seq-len", "1,50", "--queries", "3", "-n", "1", "-w", "0"});
    EXPECT_EQ(out["results"].size(), 2U);
  }
}

TEST(BenchStep, IsRightOverEveryTransportAndLayout) {
  for (const std::string transport : {"tcp", "loopback"}) {
    for (const std::string layout : {"zigzag", "contiguous"}) {
      for (const std::string ranks : {"1", "2", "3"}) {
        SCOPED_TRACE(transport + " " + layout + " " + ranks);
        const json out = result({"dsa-fwd", "--ranks", ranks, "--transport", transport, "--layout", layout, "--seq-len",
                                 "200,301", "-n", "2", "-w", "1", "--index-dtype", ranks == "3" ? "e4m3" : "bf16"});
        ASSERT_EQ(out["results"].size(), 4U);
        EXPECT_EQ(out["layout"], layout);
        for (std::size_t i = 0; i < 4; ++i) {
          const json& row = out["results"][i];
          EXPECT_EQ(row["schedule"], i % 2 == 0 ? "overlap" : "blocking");
          EXPECT_EQ(row["keys"], i < 2 ? 200 : 301);
          EXPECT_GT(row["compute_us"].get<double>(), 0);
          EXPECT_GT(row["communication_us"].get<double>(), 0);
          const double bytes_of_a_row = 576 * 2 + (ranks == "3" ? 132 : 256);
          EXPECT_EQ(row["landed_bytes"].get<double>(), row["keys"].get<double>() * bytes_of_a_row);
          EXPECT_EQ(row["received_bytes"].get<double>() > 0, ranks != "1");
          EXPECT_EQ(row["hidden"].is_null(), ranks == "1");
          if (ranks == "1") continue;
          EXPECT_NEAR(row["hidden"].get<double>(),
                      1 - row["exposed_us"].get<double>() / row["communication_us"].get<double>(), 1e-6);
        }
      }
    }
  }
}

TEST(BenchStep, BackwardAndWholeStepsAreRightOverEveryTransportAndLayout) {
  for (const std::string operation : {"dsa-bwd", "dsa-step"}) {
    for (const auto& [transport, layout] :
         {std::pair<std::string, std::string>{"tcp", "zigzag"}, {"loopback", "zigzag"}, {"loopback", "contiguous"}}) {
      for (const std::string ranks : {"1", "2", "3"}) {
        SCOPED_TRACE(operation + " " + transport + " " + layout + " " + ranks);
        const bool loss = ranks != "2";
        const std::string dtype = ranks == "3" ? "e4m3" : "bf16";
        const json out = result({operation, "--ranks", ranks, "--transport", transport, "--layout", layout, "--loss",
                                 loss ? "sparse" : "none", "--seq-len", "301", "--chunk-tokens", "32", "--index-dtype",
                                 dtype, "-n", "2", "-w", "1"});
        ASSERT_EQ(out["results"].size(), 2U);
        EXPECT_EQ(out["loss"], loss ? "sparse" : "none");
        for (const json& row : out["results"]) {
          const bool forward = operation == "dsa-step";
          EXPECT_EQ(row["gather_us"].is_null(), !forward);
          EXPECT_GT(row["reduce_us"].get<double>(), 0);
          if (!forward) {
            EXPECT_EQ(row["communication_us"], row["reduce_us"]);
          }
          EXPECT_GT(row["added_bytes"].get<double>(), 0);
          EXPECT_EQ(row["hidden"].is_null(), ranks == "1");
          if (ranks != "2" || layout != "zigzag") continue;
          // Rank 0 needs the two middle slices, rank 1 the first, of 75 rows each: the most comes to rank 1, which
          // gathers one and gets contributions to two.
          EXPECT_EQ(row["received_bytes"].get<double>(), 150 * 4 * 576 + (forward ? 75 * (2 * 576 + 256) : 0));
        }
      }
    }
  }
}

TEST(BenchStep, RanksWithoutRowsTakePart) {
  for (const std::string operation : {"dsa-fwd", "dsa-bwd", "dsa-step"}) {
    EXPECT_EQ(result({operation, "--ranks", "3", "--seq-len", "2", "-n", "1", "-w", "0"})["results"].size(), 2U);
  }
}

// Two documents, of each a quarter on the rank that asks and the rest on the other.
TEST(BenchStep, EmulatedRanksAskForAShareAndGetTheRest) {
  for (const std::string layout : {"zigzag", "contiguous"}) {
    const json out = result({"dsa-step", "--ranks", "2", "--seq-len", "320", "--emulate-ranks", "4", "--loss", "sparse",
                             "--layout", layout, "-n", "1", "-w", "0"});
    EXPECT_EQ(out["emulated_ranks"], 4);
    ASSERT_EQ(out["results"].size(), 2U);
    for (const json& row : out["results"]) {
      EXPECT_EQ(row["queries"], 80);
      if (layout == "zigzag") {
        // Of 8 slices of 40 rows rank 0 has queries in 0 and 7 and is sent the six between; rank 1 has them in 1 and 6
        // of its document and is sent 0 and 2 to 5. It also gets the gradients of the six.
        EXPECT_EQ(row["received_bytes"].get<double>(), 200 * (2 * 576 + 256) + 240 * 4 * (576 + 128));
      }
    }
  }
}

TEST(BenchStep, OneScheduleASlowLinkAndALauncher) {
  const json slow =
      result({"dsa-fwd", "--ranks", "2", "--seq-len", "256", "--schedule", "blocking", "--slow-link", "5", "-n", "2"});
  ASSERT_EQ(slow["results"].size(), 1U);
  EXPECT_EQ(slow["results"][0]["schedule"], "blocking");
  EXPECT_EQ(slow["slow_link"], 5);
  const Ended launched = run_tandem(
      {"launch", "-n", "2", "--", TANDEM_COMMAND, "bench", "dsa-fwd", "--seq-len", "256", "-n", "2", "--json"});
  ASSERT_EQ(launched.code, 0) << launched.err;
  EXPECT_EQ(json::parse(launched.out)["ranks"], 2);
  const Ended kernels = run_tandem({"launch", "-n", "2", "--", TANDEM_COMMAND, "bench", "topk"});
  EXPECT_EQ(kernels.code, 2);
  EXPECT_THAT(kernels.err, HasSubstr("--ranks: kernels are timed on one rank"));
}

TEST(BenchCompute, TablesAndValuesSeparatedByCommas) {
  const Ended table = run_tandem({"bench", "indexer", "--model", "tiny", "-n", "2", "-w", "0"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("# tandem bench indexer: kernels cpu, on host"));
  EXPECT_THAT(table.out, HasSubstr("# tiny: H 4, Hi 2, d 576, K 64"));
  EXPECT_THAT(table.out, HasSubstr("wrong: 0 OK"));
  const Ended step = run_tandem({"bench", "dsa-fwd", "--seq-len", "256", "-n", "2", "-w", "0"});
  ASSERT_EQ(step.code, 0) << step.err;
  EXPECT_THAT(step.out, HasSubstr("over tcp"));
  for (const char* column : {"kernels", "gather", "exposed", "hidden", "landed", "scratch"})
    EXPECT_THAT(step.out, HasSubstr(column));
  for (const auto& [operation, commas] :
       {std::pair<std::string, int>{"topk", 13}, {"sparse-bwd", 14}, {"dsa-fwd", 20}, {"dsa-step", 20}}) {
    const Ended csv = run_tandem({"bench", operation, "-n", "2", "-w", "0", "-c", "0", "--csv"});
    ASSERT_EQ(csv.code, 0) << csv.err;
    std::istringstream lines(csv.out);
    for (std::string line; std::getline(lines, line);) EXPECT_EQ(std::count(line.begin(), line.end(), ','), commas);
    EXPECT_THAT(csv.out, HasSubstr("N/A"));
  }
}

TEST(BenchCompute, WritesTheJsonToAFileAsWell) {
  const TemporaryFolder folder;
  const std::string path = folder.path("out.json");
  const Ended e = run_tandem({"bench", "topk", "-n", "3", "-J", path});
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_THAT(e.out, HasSubstr("# tandem bench topk"));
  std::ifstream file(path);
  const json out = json::parse(file);
  EXPECT_THAT(out["command"].get<std::string>(), HasSubstr("bench topk -n 3 -J"));
  EXPECT_TRUE(out["commit"].is_string());
  EXPECT_TRUE(out["dirty"].is_boolean());
  EXPECT_EQ(out["results"][0]["iterations"], 3);
}

// What runs longer than the limit ends the command, not before its memory is at rest.
TEST(BenchCompute, AKernelThatTakesTooLongIsAnError) {
  const Ended e = run_tandem({"bench", "indexer", "--seq-len", "16384", "--queries", "256", "--index-heads", "32", "-n",
                              "1", "-w", "0", "--timeout", "0.05"},
                             {"TANDEM_THREADS=1"});
  EXPECT_EQ(e.code, 1) << e.out;
  EXPECT_THAT(e.err, HasSubstr("tandem: rank 0: "));
}

TEST(BenchCompute, WrongUseIsRefused) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"indexer", "--model", "gpt"}, "--model: 'gpt' is unknown; it is one of tiny, deepseek-v3.2, glm-5"},
      {{"indexer", "--seq-len", "0"}, "--seq-len: 0 is too small"},
      {{"indexer", "--seq-len", "12,x"}, "--seq-len: 'x' is not a whole number"},
      {{"indexer", "--queries", "0"}, "--queries: 0 is too small"},
      {{"indexer", "--queries", "3", "--share", "2"}, "--queries and --share exclude each other"},
      {{"indexer", "--share", "0"}, "--share: 0 is too small"},
      {{"indexer", "--pattern", "random,spiral"}, "--pattern: 'spiral' is unknown"},
      {{"sparse-fwd", "--pattern", "equal"}, "--pattern: 'equal' is unknown; it is one of random, text"},
      {{"indexer", "--index-dtype", "fp4"}, "--index-dtype: 'fp4' is unknown; it is one of bf16, e4m3"},
      {{"topk", "--index-dtype", "e4m3"}, "--index-dtype: only with bench indexer, dsa-fwd, dsa-bwd or dsa-step"},
      {{"topk", "--heads", "3"}, "--heads: only with bench sparse-fwd, sparse-bwd, dsa-fwd, dsa-bwd or dsa-step"},
      {{"indexer", "--ranks", "2"}, "--ranks: kernels are timed on one rank"},
      {{"indexer", "--transport", "tcp"},
       "--transport: only with bench gather, reduce, exchange, dsa-fwd, dsa-bwd or dsa-step"},
      {{"indexer", "--slow-link", "2"}, "--slow-link: only with bench"},
      {{"indexer", "--schedule", "both"}, "--schedule: only with bench dsa-fwd, dsa-bwd or dsa-step"},
      {{"indexer", "-b", "1M"}, "--minbytes: only with bench gather, reduce or exchange"},
      {{"dsa-fwd", "--versus", "nccl"}, "--versus: only with bench gather, reduce or exchange"},
      {{"dsa-fwd", "-G", "2"}, "--cudagraph: only with bench gather, reduce or exchange"},
      {{"dsa-fwd", "--pattern", "text"}, "--pattern: only with bench indexer, topk, sparse-fwd or sparse-bwd"},
      {{"dsa-fwd", "--loss", "sparse"}, "--loss: only with bench dsa-bwd or dsa-step"},
      {{"sparse-bwd", "--loss", "sparse"}, "--loss: only with bench dsa-bwd or dsa-step"},
      {{"dsa-step", "--loss", "dense"}, "--loss: 'dense' is unknown; it is one of none, sparse"},
      {{"dsa-step", "--queries", "2"}, "--queries: only with bench indexer, topk, sparse-fwd or sparse-bwd"},
      {{"sparse-bwd", "--schedule", "both"}, "--schedule: only with bench dsa-fwd, dsa-bwd or dsa-step"},
      {{"sparse-bwd", "--index-dtype", "e4m3"}, "--index-dtype: only with bench indexer"},
      {{"sparse-bwd", "--pattern", "equal"}, "--pattern: 'equal' is unknown; it is one of random, text"},
      {{"sparse-bwd", "--ranks", "2"}, "--ranks: kernels are timed on one rank"},
      {{"dsa-fwd", "--share", "2"}, "--share: only with bench indexer, topk, sparse-fwd or sparse-bwd"},
      {{"dsa-fwd", "--ranks", "4", "--emulate-ranks", "3"}, "--emulate-ranks: 3 is fewer than the 4 ranks"},
      {{"dsa-fwd", "--deterministic"}, "--deterministic: only with bench sparse-bwd, dsa-bwd or dsa-step"},
      {{"indexer", "--emulate-ranks", "3"}, "--emulate-ranks: only with bench dsa-fwd, dsa-bwd or dsa-step"},
      {{"dsa-fwd", "--layout", "spiral"}, "--layout: 'spiral' is unknown"},
      {{"dsa-fwd", "--schedule", "lucky"}, "--schedule: 'lucky' is unknown; it is one of overlap, blocking, both"},
      {{"dsa-fwd", "--transport", "pigeon"}, "--transport: 'pigeon' is unknown"},
      {{"dsa-fwd", "--kernels", "cuda.generic"}, "--kernels: cuda.generic do not run on --device host; use cpu"},
      {{"dsa-fwd", "-J", "/no/such/folder/x"}, "--output_file: cannot write '/no/such/folder/x'"},
      {{"dsa-fwd", "--json", "--csv"}, "--csv: not together with --json"},
      {{"gather", "--model", "tiny"},
       "--model: only with bench indexer, topk, sparse-fwd, sparse-bwd, dsa-fwd, dsa-bwd or "
       "dsa-step"},
      {{"gather", "--queries", "4"}, "--queries: only with bench indexer, topk, sparse-fwd or sparse-bwd"},
      {{"gather", "--loss", "none"}, "--loss: only with bench dsa-bwd or dsa-step"},
      {{"gather", "--schedule", "both"}, "--schedule: only with bench dsa-fwd, dsa-bwd or dsa-step"}};
  for (const auto& [arguments, says] : cases) expect_refused("bench", arguments, says);
}

}  // namespace
}  // namespace tandem::testing

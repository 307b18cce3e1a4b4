// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "run_command.hpp"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Small heads: these tests are about the command, and every run costs processes.
std::vector<std::string> dsa(std::vector<std::string> more) {
  std::vector<std::string> arguments{"dsa", "--heads", "2", "--index-heads", "1", "--topk", "16"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Without the lines that --check writes where it takes long: how long it takes is the machine's business.
std::string without_progress(const std::string& text) {
  std::istringstream lines(text);
  std::string rest;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("tandem: checking", 0) != 0) rest += line + "\n";
  }
  return rest;
}

// Runs with --check --json; stdout must be one object that says all is well, stderr empty.
json good_run(const std::vector<std::string>& options, const std::vector<std::string>& environment = {}) {
  std::vector<std::string> arguments = dsa(options);
  arguments.insert(arguments.end(), {"--check", "--json"});
  const Ended e = run_tandem(arguments, environment);
  EXPECT_EQ(e.code, 0) << e.out << e.err;
  EXPECT_EQ(without_progress(e.err), "");
  json report = json::parse(e.out, nullptr, false);
  EXPECT_TRUE(report.is_object()) << e.out;
  if (!report.is_object()) return json::object();
  EXPECT_EQ(report["ok"], true);
  EXPECT_EQ(report["topk_mismatches"], 0);
  for (const char* name : {"out", "lse", "dq", "dkv", "d_index_q", "d_index_k", "d_index_w", "loss"}) {
    EXPECT_TRUE(report["max_rel_error"][name].is_number()) << name;
  }
  return report;
}

std::int64_t sum(const json& list) {
  const auto values = list.get<std::vector<std::int64_t>>();
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

void expect_fp32_errors(const json& report) {
  for (const auto& [name, error] : report["max_rel_error"].items()) EXPECT_LE(error.get<double>(), 2e-5) << name;
}

struct Case {
  std::string ranks, layout, transport;
};

class Dsa : public ::testing::TestWithParam<Case> {};

TEST_P(Dsa, IsRightOnPackedDocumentsOfAllKinds) {
  const auto& [ranks, layout, transport] = GetParam();
  const json report = good_run({"--ranks", ranks, "--layout", layout, "--transport", transport, "--docs", "65,0,1,37"});
  const int count = std::stoi(ranks);
  EXPECT_EQ(report["ranks"], count);
  EXPECT_EQ(report["tokens"].size(), static_cast<std::size_t>(count));
  EXPECT_EQ(sum(report["tokens"]), 103);
  EXPECT_EQ(report["documents"], 4);
  EXPECT_EQ(report["layout"], layout);
  EXPECT_EQ(report["transport"], transport);
  for (const char* key : {"gathered_bytes", "exposed_us", "transfer_us"}) {
    EXPECT_EQ(report[key].size(), static_cast<std::size_t>(count)) << key;
  }
  expect_fp32_errors(report);
  EXPECT_EQ(report["paths"], count == 1 ? json::array() : json::array({transport}));
  if (count == 1) {
    EXPECT_EQ(report["moved_fraction"], 0.0);
    EXPECT_EQ(sum(report["gathered_bytes"]), 0);
  } else {
    EXPECT_GT(report["moved_fraction"], 0.0);
    EXPECT_LT(report["moved_fraction"], 1.0);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* ranks : {"1", "2", "3", "4"}) {
    for (const char* layout : {"contiguous", "zigzag"}) cases.push_back({ranks, layout, "tcp"});
  }
  cases.push_back({"3", "zigzag", "loopback"});
  cases.push_back({"8", "zigzag", "loopback"});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, Dsa, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return info.param.transport + "_" + info.param.layout + "_" + info.param.ranks;
});

TEST(DsaRun, ContiguousCausalDocumentMovesHalf) {
  const json report = good_run({"--ranks", "4", "--layout", "contiguous", "--seq-len", "128"});
  EXPECT_DOUBLE_EQ(report["moved_fraction"].get<double>(), 0.5);
  const std::int64_t row = (128 + 576) * 4;
  EXPECT_EQ(report["gathered_bytes"], json::array({0, 32 * row, 64 * row, 96 * row}));
}

TEST(DsaRun, DocumentsInsideShardsMoveNothing) {
  const json report = good_run({"--ranks", "2", "--layout", "contiguous", "--docs", "40,40"});
  EXPECT_EQ(report["moved_fraction"], 0.0);
}

TEST(DsaRun, FewerTokensThanRanks) {
  EXPECT_EQ(sum(good_run({"--ranks", "4", "--docs", "2,0"})["tokens"]), 2);
  EXPECT_EQ(sum(good_run({"--ranks", "4", "--docs", "1"})["tokens"]), 1);
  EXPECT_EQ(sum(good_run({"--ranks", "3", "--docs", "0,0"})["tokens"]), 0);
}

TEST(DsaRun, MoreKeysWantedThanVisible) { good_run({"--ranks", "3", "--seq-len", "13"}); }

TEST(DsaRun, PadsCountAsTokens) {
  const json report = good_run({"--ranks", "3", "--docs", "20,0,31", "--pad-to", "40"});
  EXPECT_EQ(sum(report["tokens"]), 120);
  EXPECT_EQ(report["check"]["dead_row_faults"], 0);
}

TEST(DsaRun, Bf16AndItsWire) {
  good_run({"--ranks", "2", "--dtype", "bf16", "--seq-len", "90"});
  good_run({"--ranks", "2", "--dtype", "bf16", "--wire", "bf16", "--seq-len", "90"});
  good_run({"--ranks", "2", "--wire", "bf16", "--seq-len", "90"});
}

TEST(DsaRun, E4m3Indexer) {
  const json report = good_run({"--ranks", "4", "--layout", "contiguous", "--seq-len", "128", "--index-dtype", "e4m3"});
  expect_fp32_errors(report);
  const std::int64_t row = 132 + 576 * 4;
  EXPECT_EQ(report["gathered_bytes"], json::array({0, 32 * row, 64 * row, 96 * row}));
  EXPECT_DOUBLE_EQ(report["moved_fraction"].get<double>(), 0.5);
  const json again =
      good_run({"--ranks", "2", "--docs", "90,0,31", "--pad-to", "93", "--dtype", "bf16", "--index-dtype", "e4m3"});
  EXPECT_EQ(again["check"]["dead_row_faults"], 0);
  good_run({"--ranks", "2", "--seq-len", "60", "--index-dtype", "bf16"});
  const Ended text = run_tandem(dsa({"--ranks", "1", "--seq-len", "20", "--index-dtype", "e4m3"}));
  EXPECT_THAT(text.out, HasSubstr("fp32, its indexer e4m3;"));
}

TEST(DsaRun, ChunkSizeAndSeedAndDeterminism) {
  const json a = good_run({"--ranks", "2", "--seq-len", "80", "--chunk-tokens", "1", "--deterministic"});
  const json b = good_run({"--ranks", "2", "--seq-len", "80", "--chunk-tokens", "64"});
  EXPECT_EQ(a["gathered_bytes"], b["gathered_bytes"]);
  EXPECT_EQ(a["check"]["loss"], b["check"]["loss"]);
  const json d = good_run({"--ranks", "2", "--seq-len", "80", "--loss-pass", "forward"});
  EXPECT_NEAR(a["check"]["loss"].get<double>(), d["check"]["loss"].get<double>(), 1e-6);
  const json c = good_run({"--ranks", "2", "--seq-len", "80", "--seed", "77"});
  EXPECT_NE(a["check"]["loss"], c["check"]["loss"]);
}

TEST(DsaRun, TextFilesAreDocuments) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a.txt", "a line of text, and a line of text, and a line of text\n");
  const std::string empty = folder.write("empty.txt", "");
  const std::string binary = folder.write("binary", std::string("\x00\xff\x80 bytes", 9));
  const json report = good_run({"--ranks", "2", "--input", a, empty, binary});
  EXPECT_EQ(report["documents"], 3);
  EXPECT_EQ(sum(report["tokens"]), 55 + 9);
}

TEST(DsaRun, WithoutCheckSaysNothingOfErrors) {
  const Ended e = run_tandem(dsa({"--ranks", "2", "--seq-len", "64", "--json"}));
  ASSERT_EQ(e.code, 0) << e.err;
  const json report = json::parse(e.out);
  EXPECT_TRUE(report["max_rel_error"].is_null());
  EXPECT_EQ(report["ok"], true);
}

TEST(DsaRun, MemoryIsABillPerRank) {
  const json report = good_run({"--ranks", "2", "--seq-len", "64", "--memory"});
  ASSERT_EQ(report["memory"].size(), 2U);
  // 32 rows: q and kv of 576, index_q and index_k of 128, index_w; 2 heads and 1. And a sink for each head.
  EXPECT_EQ(report["memory"][0]["inputs"], 32 * 4 * (2 * 576 + 576 + 128 + 128 + 1) + 2 * 4);
  std::uint64_t sum = 0;
  for (const char* part :
       {"inputs", "outputs", "landed", "scratch", "gradients", "accumulators", "staging", "tables"}) {
    sum += report["memory"][0][part].get<std::uint64_t>();
  }
  EXPECT_EQ(report["memory"][0]["total"], sum);
  const Ended text = run_tandem(dsa({"--ranks", "1", "--seq-len", "64", "--memory"}));
  EXPECT_THAT(text.out, HasSubstr("accumulators"));
}

TEST(DsaRun, TableForPeople) {
  const Ended e = run_tandem(dsa({"--ranks", "2", "--seq-len", "64", "--check"}));
  ASSERT_EQ(e.code, 0) << e.err;
  for (const char* part : {"2 ranks over tcp", "tokens", "gathered", "transfer", "exposed", "d_index_k", "\nok\n"}) {
    EXPECT_THAT(e.out, HasSubstr(part));
  }
}

TEST(DsaRun, TraceHasEveryRank) {
  const TemporaryFolder folder;
  const std::string path = folder.path("out.trace.json");
  good_run({"--ranks", "3", "--seq-len", "96", "--trace", path});
  std::ifstream file(path);
  const json trace = json::parse(file, nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  std::set<int> ranks;
  std::set<std::string> kinds;
  for (const json& event : trace.is_array() ? trace : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      ranks.insert(event["pid"].get<int>());
      const std::string name = event["name"];
      kinds.insert(name.substr(0, name.find('/')));
    }
  }
  EXPECT_EQ(ranks.size(), 3U);
  for (const char* kind : {"gather", "reduce", "wait", "compute"}) EXPECT_EQ(kinds.count(kind), 1U) << kind;
  EXPECT_EQ(folder.files().size(), 1U);
}

TEST(DsaRun, UnderALauncher) {
  const Ended e =
      run_tandem({"launch", "-n", "3", "--", TANDEM_COMMAND, "dsa", "--seq-len", "60", "--check", "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(json::parse(e.out)["ranks"], 3);
}

}  // namespace
}  // namespace tandem::testing

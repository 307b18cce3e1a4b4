// SPDX-License-Identifier: Apache-2.0
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

TEST(Bench, EveryOperationIsRightOverEveryTransport) {
  for (const std::string operation : {"gather", "reduce", "exchange"}) {
    for (const std::string transport : {"tcp", "loopback"}) {
      for (const int ranks : {1, 2, 3}) {
        const Ended e = run_tandem({"bench", operation, "--ranks", std::to_string(ranks), "--transport", transport,
                                    "-b", "10K", "-e", "100K", "-f", "8", "-n", "3", "-w", "1", "--json"});
        ASSERT_EQ(e.code, 0) << operation << ' ' << transport << ' ' << ranks << ": " << e.err;
        const json out = json::parse(e.out);
        EXPECT_EQ(out["operation"], operation);
        EXPECT_EQ(out["ranks"], ranks);
        EXPECT_EQ(out["ok"], true);
        ASSERT_EQ(out["results"].size(), 2U);
        for (const json& row : out["results"]) {
          EXPECT_EQ(row["wrong"], 0);
          EXPECT_GT(row["median_us"].get<double>(), 0);
          EXPECT_GE(row["p95_us"].get<double>(), row["median_us"].get<double>());
          const auto per_rank = row["per_rank"].get<std::uint64_t>();
          EXPECT_EQ(row["size"], per_rank * static_cast<std::uint64_t>(ranks));
          const auto received = row["received"].get<std::uint64_t>();
          const std::uint64_t others =
              operation == "exchange" ? (ranks > 1 ? 1 : 0) : static_cast<std::uint64_t>(ranks - 1);
          // A rank sees all rows but the last few, which are dealt out; in a reduction the last rank's come from fewer.
          EXPECT_LE(received, others * per_rank);
          EXPECT_GE(received + 4 * 2304, others * per_rank);
        }
      }
    }
  }
}

TEST(Bench, TableAndValuesSeparatedByCommas) {
  const Ended table = run_tandem({"bench", "gather", "-b", "64K", "-e", "128K", "-n", "2", "-w", "0"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("# tandem bench gather: 2 ranks over tcp"));
  EXPECT_THAT(table.out, HasSubstr("algbw"));
  EXPECT_THAT(table.out, HasSubstr("# Out of bounds values : 0 OK"));
  const Ended csv = run_tandem({"bench", "exchange", "-b", "64K", "-e", "128K", "-n", "2", "-c", "0", "--csv"});
  ASSERT_EQ(csv.code, 0) << csv.err;
  std::istringstream lines(csv.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_EQ(std::count(line.begin(), line.end(), ','), 13);
  EXPECT_EQ(count, 3);
  EXPECT_THAT(csv.out, HasSubstr("N/A"));
}

TEST(Bench, WritesTheJsonToAFileAsWell) {
  const TemporaryFolder folder;
  const std::string path = folder.path("out.json");
  const Ended e = run_tandem({"bench", "gather", "-b", "64K", "-e", "64K", "-n", "3", "-J", path});
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_THAT(e.out, HasSubstr("# Avg bus bandwidth"));
  std::ifstream file(path);
  const json out = json::parse(file);
  EXPECT_THAT(out["command"].get<std::string>(), HasSubstr("bench gather -b 64K -e 64K -n 3 -J"));
  EXPECT_EQ(out["results"].size(), 1U);
  EXPECT_EQ(out["results"][0]["iterations"], 3);
  EXPECT_EQ(out["ok"], true);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"out.json"});
}

TEST(Bench, ASlowLinkBringsTheSameData) {
  for (const std::string operation : {"gather", "reduce", "exchange"}) {
    const Ended e = run_tandem({"bench", operation, "--ranks", "3", "--slow-link", "3", "-b", "3M", "-e", "3M", "-n",
                                "2", "-w", "1", "--json"});
    ASSERT_EQ(e.code, 0) << e.err;
    const json out = json::parse(e.out);
    EXPECT_EQ(out["slow_link"], 3);
    EXPECT_EQ(out["results"][0]["wrong"], 0);
  }
}

// Forty times the bytes: even where other work disturbs the clock they take more than four times as long.
TEST(Bench, ASlowLinkIsSlower) {
  const auto median = [](const std::string& times) {
    const Ended e = run_tandem(
        {"bench", "exchange", "--slow-link", times, "-b", "4M", "-e", "4M", "-n", "5", "-w", "1", "-c", "0", "--json"});
    EXPECT_EQ(e.code, 0) << e.err;
    return e.code == 0 ? json::parse(e.out)["results"][0]["median_us"].get<double>() : 0;
  };
  const double once = median("1");
  EXPECT_GT(median("40"), 4 * once);
}

TEST(Bench, WrongUseIsRefused) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"scatter"}, "'scatter' is unknown; it is one of gather, reduce, exchange"},
      {{"gather", "-b", "0"}, "--minbytes: '0'"},
      {{"gather", "-b", "1X"}, "--minbytes: '1X' is not a number of bytes"},
      {{"gather", "-b", "2M", "-e", "1M"}, "--maxbytes: 1048576 is less than --minbytes, 2097152"},
      {{"gather", "-f", "1"}, "--stepfactor: 1 is too small"},
      {{"gather", "-n", "0"}, "--iters: 0 is too small"},
      {{"gather", "--transport", "pigeon"}, "--transport: 'pigeon' is unknown"},
      {{"gather", "--versus", "nccl"}, "--versus: only with --device cuda"},
      {{"gather", "--beside", "gemm:2"}, "--beside: only with --device cuda"},
      {{"gather", "-G", "3"}, "--cudagraph: only with --device cuda"},
      {{"gather", "--transport", "loopback", "--slow-link", "2"}, "--slow-link: transport loopback"},
      {{"gather", "-J", "/no/such/folder/x"}, "--output_file: cannot write '/no/such/folder/x'"},
      {{"gather", "--json", "--csv"}, "--csv: not together with --json"},
      {{}, "OPERATION"}};
  for (const auto& [arguments, says] : cases) expect_refused("bench", arguments, says);
}

}  // namespace
}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
// `tandem bench --device cuda`, run as it is. Ranks share GPUs where there are too few, so times mean nothing here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "multiprocess/cli/run_command.hpp"
#include "tandem/device.hpp"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class GpuBench : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Device::cuda_count() == 0) GTEST_SKIP() << "SKIPPED: no GPU";
  }

  // Beside this test in the build folder, wherever that has been carried to.
  static Ended run(const std::string& operation, const std::vector<std::string>& options) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> command{(self.parent_path().parent_path().parent_path() / "bin" / "tandem").string(),
                                     "bench",
                                     operation,
                                     "--device",
                                     "cuda",
                                     "--json"};
    command.insert(command.end(), options.begin(), options.end());
    return Running(command).wait(std::chrono::minutes(2));
  }
  static json result(const std::string& operation, const std::vector<std::string>& options) {
    const Ended e = run(operation, options);
    EXPECT_EQ(e.code, 0) << operation << ": " << e.out << e.err;
    if (e.code != 0) return json();
    json out = json::parse(e.out);
    EXPECT_EQ(out["ok"], true);
    for (const json& row : out["results"]) {
      EXPECT_EQ(row["wrong"], 0) << row;
      EXPECT_GT(row["median_us"].get<double>(), 0) << row;
      EXPECT_GE(row["p95_us"].get<double>(), row["median_us"].get<double>()) << row;
    }
    return out;
  }
};

TEST_F(GpuBench, MovesTheRightDataInEveryMode) {
  for (const std::string operation : {"gather", "reduce", "exchange"}) {
    for (const std::string ranks : {"1", "2"}) {
      const std::vector<std::string> options{"--ranks", ranks, "-b", "64K", "-e", "4M",
                                             "-f",      "64",  "-n", "4",   "-w", "1"};
      const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), options.begin(), options.end());
        return result(operation, more);
      };
      SCOPED_TRACE(operation + " over " + ranks);
      EXPECT_EQ(with({})["results"].size(), 2U);
      EXPECT_EQ(with({"--slow-link", "3"})["results"].size(), 2U);
      const json graph = with({"-G", "3"});
      ASSERT_EQ(graph["results"].size(), 2U);
      EXPECT_EQ(graph["results"][0]["iterations"], 3);
    }
  }
}

TEST_F(GpuBench, RunsBesideGemms) {
  for (const std::string operation : {"gather", "reduce", "exchange"}) {
    for (const std::string ranks : {"1", "2"}) {
      SCOPED_TRACE(operation + " over " + ranks);
      const std::vector<std::string> options{"--ranks", ranks, "-b", "4M", "-e", "4M", "-n", "2", "--beside", "gemm:2"};
      const Ended e = run(operation, options);
      if (e.err.find("no cuBLAS") != std::string::npos) GTEST_SKIP() << "SKIPPED: " << e.err;
      ASSERT_EQ(e.code, 0) << e.err;
      const json out = json::parse(e.out);
      EXPECT_EQ(out["ok"], true) << out;
      const json& beside = out["results"][0]["beside"];
      EXPECT_GE(beside["repeats"], 1);
      for (const char* figure : {"alone_us", "beside_us", "gemm_alone_us", "gemm_beside_us", "chunked_us"})
        EXPECT_GT(beside[figure].get<double>(), 0) << figure;
      EXPECT_GE(beside["stalls_us"].get<double>(), 0);
      EXPECT_LE(beside["stalls_us"], beside["chunked_us"]);
    }
  }
}

TEST_F(GpuBench, TakesTurnsWithNccl) {
  for (const std::string operation : {"gather", "reduce"}) {
    for (const std::vector<std::string>& mode :
         {std::vector<std::string>{}, {"-G", "3"}, {"--slow-link", "2"}, {"--beside", "gemm:2"}}) {
      std::vector<std::string> options{"--ranks", "1", "-b", "1M", "-e", "1M", "-n", "4", "--versus", "nccl"};
      options.insert(options.end(), mode.begin(), mode.end());
      const Ended e = run(operation, options);
      for (const char* missing : {"no usable NCCL", "has no NCCL", "no cuBLAS"}) {
        if (e.err.find(missing) != std::string::npos) GTEST_SKIP() << "SKIPPED: " << e.err;
      }
      ASSERT_EQ(e.code, 0) << e.err;
      const json out = json::parse(e.out);
      EXPECT_EQ(out["ok"], true) << out;
      EXPECT_TRUE(out["nccl"].is_string());
      ASSERT_GE(out["results"].size(), 2U);
      EXPECT_EQ(out["results"][0]["contender"], "tandem");
      for (const json& row : out["results"]) EXPECT_EQ(row["wrong"], 0) << row;
    }
  }
}

// Every row that is computed again in double is right, and no time is below the floor.
TEST_F(GpuBench, KernelsAndStepsAreRight) {
  const auto rows_of = [](const std::string& operation, const std::vector<std::string>& options) {
    const json out = result(operation, options);
    EXPECT_FALSE(out["rates"].is_null());
    for (const json& row : out["results"]) {
      EXPECT_GT(row["checked_rows"], 0) << row;
      EXPECT_LT(row["of_floor"].get<double>(), 1.05) << row;
    }
    return out["results"].size();
  };
  for (const std::string kernels : {"cuda.generic", "cuda"}) {
    SCOPED_TRACE(kernels);
    // Those of cuda.generic are not fast.
    const std::string length = kernels == "cuda" ? "8192" : "2560";
    const std::vector<std::string> shape{"--model", "glm-5", "--kernels", kernels, "--seq-len",
                                         length,    "-n",    "3",         "-w",    "1"};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), shape.begin(), shape.end());
      return more;
    };
    for (const std::string dtype : {"bf16", "e4m3"}) {
      EXPECT_EQ(rows_of("indexer",
                        with({"--queries", "256", "--index-dtype", dtype, "--pattern", "random,text,ascending,equal"})),
                4U);
      EXPECT_EQ(rows_of("dsa-fwd", with({"--ranks", "2", "--index-dtype", dtype})), 2U);
    }
    EXPECT_EQ(rows_of("indexer", with({"--share", "8"})), 1U);
    EXPECT_EQ(rows_of("topk", with({"--queries", "256", "--pattern", "random,text,ascending,equal"})), 4U);
    EXPECT_EQ(rows_of("sparse-fwd", with({"--queries", "256", "--pattern", "random,text"})), 2U);
    EXPECT_EQ(rows_of("sparse-bwd", with({"--queries", "256", "--pattern", "random,text"})), 2U);
    // Backward and whole steps of few heads, that cuda.generic be done in time.
    const auto few = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--heads", "16", "--topk", "512", "--ranks", "2"});
      return with(more);
    };
    EXPECT_EQ(rows_of("dsa-bwd", few({})), 2U);
    EXPECT_EQ(rows_of("dsa-step", few({"--loss", "sparse", "--index-dtype", "e4m3"})), 2U);
  }
}

TEST_F(GpuBench, NcclWantsAGpuForEachRank) {
  const Ended e =
      run("gather", {"--ranks", std::to_string(Device::cuda_count() + 1), "-b", "1M", "-e", "1M", "--versus", "nccl"});
  if (e.err.find("has no NCCL") != std::string::npos) GTEST_SKIP() << "SKIPPED: " << e.err;
  EXPECT_EQ(e.code, 2) << e.err;
  EXPECT_THAT(e.err, HasSubstr("--versus: ranks 0 and"));
}

}  // namespace
}  // namespace tandem::testing

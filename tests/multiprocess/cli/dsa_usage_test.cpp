// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "refusal.hpp"
#include "tandem/device.hpp"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

struct Bad {
  std::vector<std::string> arguments;
  std::string says;
};

void PrintTo(const Bad& bad, std::ostream* out) {
  for (const std::string& a : bad.arguments) *out << a << ' ';
}

class DsaUsage : public ::testing::TestWithParam<Bad> {};

TEST_P(DsaUsage, IsRefused) { expect_refused("dsa", GetParam().arguments, GetParam().says); }

INSTANTIATE_TEST_SUITE_P(
    All, DsaUsage,
    ::testing::Values(
        Bad{{"--ranks", "0"}, "--ranks: 0 is too small"}, Bad{{"--ranks", "-2"}, "--ranks: -2 is too small"},
        Bad{{"--ranks", "many"}, "--ranks: 'many' is not a whole number"},
        Bad{{"--ranks", "100000"}, "--ranks: 100000 is too large"},
        Bad{{"--seq-len", "-5"}, "--seq-len: -5 is too small"}, Bad{{"--seq-len", "0"}, "--seq-len: 0 is too small"},
        Bad{{"--seq-len", "4294967296"}, "too large"}, Bad{{"--docs", "5,-1,3"}, "--docs: -1 is too small"},
        Bad{{"--docs", "5,,3"}, "--docs: '' is not a whole number"},
        Bad{{"--docs", "2000000000,2000000000"}, "more than 2147483647 rows"},
        Bad{{"--seq-len", "2000000000", "--model", "deepseek-v3.2"}, "2000000000 rows take 2 PiB, this machine has"},
        Bad{{"--docs", ""}, "--docs"}, Bad{{"--topk", "0"}, "--topk: 0 is too small"},
        Bad{{"--heads", "0"}, "--heads: 0 is too small"}, Bad{{"--index-heads", "0"}, "--index-heads: 0 is too small"},
        Bad{{"--chunk-tokens", "0"}, "--chunk-tokens: 0 is too small"},
        Bad{{"--model", "gpt"}, "--model: 'gpt' is unknown; it is one of tiny, deepseek-v3.2, glm-5"},
        Bad{{"--layout", "striped"}, "one of contiguous, zigzag"}, Bad{{"--dtype", "fp8"}, "one of fp32, bf16"},
        Bad{{"--index-dtype", "fp8"}, "--index-dtype: 'fp8' is unknown; it is one of fp32, bf16, e4m3"},
        Bad{{"--wire", "int8"}, "one of fp32, bf16"}, Bad{{"--transport", "pigeon"}, "one of tcp, loopback"},
        Bad{{"--device", "tpu"}, "--device: 'tpu' is unknown; it is one of host, cuda"},
        Bad{{"--kernels", "fast"}, "--kernels: 'fast' is unknown; it is one of cpu, cuda, cuda.generic, cuda.sm90"},
        Bad{{"--kernels", "cuda.generic"}, "--kernels: cuda.generic do not run on --device host; use cpu"},
        Bad{{"--timeout", "0"}, "--timeout"}, Bad{{"--timeout", "soon"}, "--timeout: 'soon'"},
        Bad{{"--rendezvous-timeout", "-1"}, "--rendezvous-timeout"}, Bad{{"--seed", "-1"}, "--seed: '-1'"},
        Bad{{"--seq-len", "9", "--docs", "4"}, "--seq-len and --docs exclude each other"},
        Bad{{"--seq-len", "9", "--input", "/etc/passwd"}, "--seq-len and --input exclude each other"},
        Bad{{"--docs", "9", "--input", "/etc/passwd"}, "--docs and --input exclude each other"},
        Bad{{"--docs", "9,4", "--pad-to", "8"}, "--pad-to: 8 is smaller than document 0, which has 9 tokens"},
        Bad{{"--pad-to", "8"}, "--pad-to needs"}, Bad{{"--no-such-option"}, "--no-such-option"},
        Bad{{"--ranks", "2", "stray"}, "stray"}, Bad{{"--ranks"}, "--ranks"},
        Bad{{"--input", "/no/such/file"}, "--input: cannot read '/no/such/file': No such file or directory"},
        Bad{{"--input", "/"}, "--input: cannot read '/': Is a directory"},
        Bad{{"--trace", "/no/such/folder/t.json"}, "--trace: cannot write '/no/such/folder/t.json': No such file"},
        Bad{{"--trace", "/"}, "--trace: cannot write '/': Is a directory"},
        Bad{{"--trace", "/dev/null"}, "not a regular file"}));

TEST(DsaDevice, CudaNeedsAGpu) {
  if (Device::cuda_count() > 0) GTEST_SKIP() << "there is a GPU";
  const Ended e = run_tandem({"dsa", "--device", "cuda"});
  EXPECT_EQ(e.code, 2);
  EXPECT_THAT(e.err, HasSubstr("--device: cuda cannot be used: "));
}

TEST(Usage, NoOrUnknownCommand) {
  EXPECT_EQ(run_tandem({}).code, 2);
  const Ended unknown = run_tandem({"attend"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("there is no command 'attend'"));
  EXPECT_EQ(run_tandem({"info", "extra"}).code, 2);
}

TEST(Usage, AResultThatCannotBeWrittenIsAFailure) {
  for (const char* command : {"info", "dsa --seq-len 64", "dsa --ranks 1 --seq-len 64 --json",
                              "bench gather --ranks 1 -b 64K -e 64K -n 1", "bench topk --seq-len 64 -n 1"}) {
    const Ended e = Running({"sh", "-c", "exec \"$0\" " + std::string(command) + " >/dev/full", TANDEM_COMMAND}).wait();
    EXPECT_EQ(e.code, 1) << command;
    EXPECT_THAT(e.err, HasSubstr("cannot write to stdout: No space left")) << command;
  }
}

TEST(DsaUsageUnderALauncher, NamesTheRank) {
  const std::vector<std::string> rank{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"};
  const Ended other = run_tandem({"dsa", "--ranks", "3"}, rank);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("rank 1"));
  EXPECT_THAT(other.err, HasSubstr("--ranks: 3 differs from WORLD_SIZE"));
  const Ended loopback = run_tandem({"dsa", "--transport", "loopback"}, rank);
  EXPECT_EQ(loopback.code, 2);
  EXPECT_THAT(loopback.err, HasSubstr("threads of one process"));
}

TEST(DsaUsageUnderALauncher, WantsTheWholeEnvironment) {
  const std::string store = "TANDEM_STORE=127.0.0.1:1/00000000000000000000000000000000";
  EXPECT_THAT(run_tandem({"dsa"}, {"RANK=1", "WORLD_SIZE=2"}).err,
              HasSubstr("RANK is 1 of WORLD_SIZE 2, but neither MASTER_ADDR nor TANDEM_STORE says where ranks meet"));
  EXPECT_THAT(run_tandem({"dsa"}, {store}).err, HasSubstr("TANDEM_STORE is set, but RANK is not"));
  EXPECT_THAT(run_tandem({"dsa"}, {store, "RANK=0"}).err, HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(run_tandem({"dsa"}, {store, "RANK=2", "WORLD_SIZE=2"}).err, HasSubstr("RANK is 2, but WORLD_SIZE is 2"));
  EXPECT_THAT(run_tandem({"dsa"}, {store, "RANK=x", "WORLD_SIZE=2"}).err, HasSubstr("RANK is 'x'"));
}

}  // namespace
}  // namespace tandem::testing

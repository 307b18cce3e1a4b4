// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "run_command.hpp"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

// The indented lines after "Examples:".
std::vector<std::string> examples_in(const std::string& help) {
  std::vector<std::string> examples;
  std::istringstream lines(help);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (inside && line.starts_with("  ")) examples.push_back(line.substr(2));
    if (line == "Examples:") inside = true;
  }
  return examples;
}

class Help : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Help, ExamplesRunAsTheyAre) {
  std::vector<std::string> arguments = GetParam();
  arguments.emplace_back("--help");
  const Ended help = run_tandem(arguments);
  ASSERT_EQ(help.code, 0);
  const std::vector<std::string> examples = examples_in(help.out);
  EXPECT_GE(examples.size(), 2U) << help.out;
  const std::string path = "PATH=" + std::filesystem::path(TANDEM_COMMAND).parent_path().string() + ":/usr/bin:/bin";
  for (const std::string& example : examples) {
    const Ended e = Running({"env", path, "sh", "-c", example}).wait();
    EXPECT_EQ(e.code, 0) << example << "\n" << e.out << e.err;
    EXPECT_NE(e.out, "") << example;
  }
}
INSTANTIATE_TEST_SUITE_P(All, Help,
                         ::testing::Values(std::vector<std::string>{}, std::vector<std::string>{"launch"},
                                           std::vector<std::string>{"dsa"}, std::vector<std::string>{"bench"},
                                           std::vector<std::string>{"info"}));

TEST(Help, NamesEveryOptionOfDsa) {
  const Ended help = run_tandem({"dsa", "--help"});
  for (const char* option : {"--ranks",         "--transport",   "--device",       "--rendezvous-timeout",
                             "--timeout",       "--model",       "--seq-len",      "--docs",
                             "--pad-to",        "--input",       "--layout",       "--topk",
                             "--heads",         "--index-heads", "--chunk-tokens", "--dtype",
                             "--deterministic", "--loss-pass",   "--wire",         "--check",
                             "--memory",        "--trace",       "--json",         "--seed"}) {
    EXPECT_THAT(help.out, HasSubstr(option));
  }
}

TEST(Help, NamesEveryOptionOfBench) {
  const Ended help = run_tandem({"bench", "--help"});
  for (const char* option : {"--ranks",       "--device",         "--transport",     "-b,--minbytes",
                             "-e,--maxbytes", "-f,--stepfactor",  "-n,--iters",      "-w,--warmup_iters",
                             "-c,--check",    "-G,--cudagraph",   "--chunk-tokens",  "--versus",
                             "--beside",      "--slow-link",      "--model",         "--seq-len",
                             "--queries",     "--share",          "--pattern",       "--topk",
                             "--heads",       "--index-heads",    "--index-dtype",   "--kernels",
                             "--layout",      "--schedule",       "--emulate-ranks", "--deterministic",
                             "--timeout",     "-J,--output_file", "--json",          "--csv"}) {
    EXPECT_THAT(help.out, HasSubstr(option));
  }
}

TEST(Help, VersionIsOneLine) {
  const Ended e = run_tandem({"--version"});
  EXPECT_EQ(e.code, 0);
  EXPECT_THAT(e.out, ::testing::MatchesRegex("tandem [0-9.]+\n"));
}

}  // namespace
}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

TEST(JobToken, HexIsThirtyTwoDigitsAndComesBack) {
  JobToken token{};
  for (std::size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::uint8_t>(17 * i);
  EXPECT_EQ(to_hex(token), "00112233445566778899aabbccddeeff");
  EXPECT_EQ(job_token_from_hex("00112233445566778899AABBccddeeff"), token);
}

TEST(JobToken, OtherTextIsNoToken) {
  const std::string good(32, 'a');
  for (const std::string& bad : {std::string(), good.substr(1), good + "a", "g" + good.substr(1), good.substr(1) + "-",
                                 " " + good.substr(1), "0x" + good.substr(2), "+" + good.substr(1)}) {
    testing::error_of(ErrorCode::invalid_argument, [&] { job_token_from_hex(bad); });
  }
}

TEST(JobToken, RandomTokensDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(to_hex(random_job_token())).second);
}

TEST(JobToken, TextDecidesTheToken) {
  EXPECT_EQ(job_token_from("29500/run"), job_token_from("29500/run"));
  std::set<std::string> seen;
  for (int port = 0; port < 50; ++port) {
    for (int run = 0; run < 20; ++run) {
      const JobToken token = job_token_from(std::to_string(port) + "/" + std::to_string(run));
      EXPECT_TRUE(seen.insert(to_hex(token)).second);
      EXPECT_FALSE(std::equal(token.begin(), token.begin() + 8, token.begin() + 8));
    }
  }
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "run_command.hpp"

namespace tandem::testing {

/// `tandem COMMAND` with these arguments exits with 2, prints nothing and `says` why on stderr.
inline void expect_refused(const std::string& command, const std::vector<std::string>& arguments,
                           const std::string& says) {
  std::vector<std::string> all{command};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Ended e = run_tandem(all);
  EXPECT_EQ(e.code, 2) << says << ", but: " << e.err;
  EXPECT_EQ(e.out, "") << says;
  EXPECT_THAT(e.err, ::testing::HasSubstr(says));
}

}  // namespace tandem::testing

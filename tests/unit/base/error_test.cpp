// SPDX-License-Identifier: Apache-2.0
#include "tandem/error.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tandem/version.hpp"

namespace tandem {
namespace {

TEST(ErrorCodes, NamesAreTheEnumerators) {
  EXPECT_STREQ(to_string(ErrorCode::ok), "ok");
  EXPECT_STREQ(to_string(ErrorCode::peer_failed), "peer_failed");
  EXPECT_STREQ(to_string(ErrorCode::invalid_argument), "invalid_argument");
  EXPECT_STREQ(to_string(ErrorCode::internal), "internal");
  EXPECT_STREQ(to_string(static_cast<ErrorCode>(99)), "unknown");
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(ErrorCode::internal); ++i) names.insert(to_string(static_cast<ErrorCode>(i)));
  EXPECT_EQ(names.size(), 12U);
}

TEST(Error, KeepsItsFacts) {
  const Error e(ErrorCode::timeout, "no answer", 3, 17);
  EXPECT_EQ(e.code(), ErrorCode::timeout);
  EXPECT_EQ(e.rank(), 3);
  EXPECT_EQ(e.op(), 17);
}

TEST(Error, WhatNamesCodeRankAndOp) {
  EXPECT_STREQ(Error(ErrorCode::timeout, "no answer").what(), "timeout: no answer");
  EXPECT_STREQ(Error(ErrorCode::timeout, "no answer", 3).what(), "timeout: no answer (rank 3)");
  EXPECT_STREQ(Error(ErrorCode::timeout, "no answer", -1, 17).what(), "timeout: no answer (op 17)");
  EXPECT_STREQ(Error(ErrorCode::timeout, "no answer", 0, 0).what(), "timeout: no answer (rank 0, op 0)");
}

TEST(Error, WhatDoesNotRepeatTheMessage) {
  EXPECT_STREQ(Error(ErrorCode::peer_failed, "rank 3 died", 3).what(), "peer_failed: rank 3 died");
  EXPECT_STREQ(Error(ErrorCode::peer_failed, "rank 3 died in op 4", 3, 4).what(), "peer_failed: rank 3 died in op 4");
  // Other numbers, other words.
  EXPECT_STREQ(Error(ErrorCode::peer_failed, "rank 31 died", 3).what(), "peer_failed: rank 31 died (rank 3)");
  EXPECT_STREQ(Error(ErrorCode::peer_failed, "loop 4 and op 45", -1, 4).what(), "peer_failed: loop 4 and op 45 (op 4)");
}

TEST(Error, RewrappedTextStaysTheSame) {
  const Error first(ErrorCode::transport, "connection reset", 2, 9);
  const Error second(first.code(), first.what(), first.rank(), first.op());
  EXPECT_STREQ(second.what(), first.what());
}

TEST(Status, ThrowsOnlyIfFailed) {
  EXPECT_TRUE(Status{}.ok());
  EXPECT_NO_THROW(Status{}.throw_if_failed());
  const Status failed{ErrorCode::aborted, "the caller asked for it", 1, 5};
  EXPECT_FALSE(failed.ok());
  try {
    failed.throw_if_failed();
    FAIL() << "did not throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::aborted);
    EXPECT_EQ(e.rank(), 1);
    EXPECT_EQ(e.op(), 5);
    EXPECT_STREQ(e.what(), "aborted: the caller asked for it (rank 1, op 5)");
  }
}

TEST(Version, LibraryAndHeadersAgree) { EXPECT_STREQ(version(), TANDEM_VERSION_STRING); }

}  // namespace
}  // namespace tandem

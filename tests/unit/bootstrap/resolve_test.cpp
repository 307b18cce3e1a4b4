// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/resolve.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <cstring>
#include <thread>

#include "unit/bootstrap/names.hpp"
#include "unit/bootstrap/threads.hpp"

namespace tandem::detail {
namespace {

using ::testing::AllOf;
using testing::expect_threads;
using ::testing::HasSubstr;
using testing::in_ms;
using ::testing::IsEmpty;
using testing::soon;
using testing::threads;
namespace names = testing::names;

class Resolve : public ::testing::Test {
 protected:
  // ThreadSanitizer starts a thread of its own with the first.
  void SetUp() override {
    std::thread([] {}).join();
  }

  std::string first(const std::string& host, Deadline deadline = soon()) {
    reason_.clear();
    const auto endpoints = resolve({host, 4321}, deadline, &reason_);
    return endpoints.empty() ? "" : format_host_port(endpoints.front());
  }

  std::string reason_;
};

TEST_F(Resolve, AnAddressInTextIsParsedWithoutAThreadOrAQuestion) {
  const int asked = names::asked();
  EXPECT_EQ(first("127.0.0.1"), "127.0.0.1:4321");
  EXPECT_EQ(first("10.1.2.3"), "10.1.2.3:4321");
  EXPECT_EQ(first("::1"), "[::1]:4321");
  EXPECT_EQ(first("fd00:0::1"), "[fd00::1]:4321");
  EXPECT_THAT(first("fe80::1%lo"), HasSubstr("[fe80::1%"));
  // Also where there is no time left for anything else.
  EXPECT_EQ(first("127.0.0.1", in_ms(0)), "127.0.0.1:4321");
  EXPECT_EQ(names::asked(), asked);
}

TEST_F(Resolve, LocalhostLeavesNoThreadBehind) {
  const std::size_t before = threads();
  for (int i = 0; i < 20; ++i) EXPECT_THAT(first("localhost"), HasSubstr(":4321")) << reason_;
  expect_threads(before);
}

TEST_F(Resolve, ANameThatCannotBeResolvedGivesTheReason) {
  const std::size_t before = threads();
  EXPECT_EQ(first(names::unknown), "");
  EXPECT_THAT(reason_, AllOf(HasSubstr(names::unknown), HasSubstr(::gai_strerror(EAI_NONAME))));
  EXPECT_EQ(first(names::broken), "");
  EXPECT_THAT(reason_, AllOf(HasSubstr(names::broken), HasSubstr(std::strerror(EMFILE))));
  expect_threads(before);
}

TEST_F(Resolve, AResolverThatTakesTooLongIsLeftBehindAndEndsByItself) {
  const std::size_t before = threads();
  names::block();
  EXPECT_EQ(first(names::blocking, in_ms(50)), "");
  EXPECT_THAT(reason_, AllOf(HasSubstr(names::blocking), HasSubstr("not resolved in time")));
  const Deadline limit = soon();
  while (names::waiting() == 0 && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(threads(), before + 1);
  names::release();
  expect_threads(before);
  EXPECT_EQ(names::waiting(), 0);
}

}  // namespace
}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include "tandem/libraries.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

std::string as_text(void* function) { return reinterpret_cast<const char* (*)()>(function)(); }
std::string nothing(void*) { return ""; }

TEST(Libraries, OneThatIsThereTellsItsVersion) {
  const FoundLibrary libc = find_library("libc", "libc.so.6", "gnu_get_libc_version", as_text);
  EXPECT_THAT(libc.version, HasSubstr("2."));
  EXPECT_EQ(libc.missing, "");
}

TEST(Libraries, OneThatIsNotThereOrIsAnotherSaysSo) {
  const FoundLibrary none = find_library("x", "libthere-is-no-such.so.1", "f", as_text);
  EXPECT_EQ(none.version, "");
  EXPECT_THAT(none.missing, HasSubstr("libthere-is-no-such.so.1"));
  const FoundLibrary other = find_library("x", "libc.so.6", "there_is_no_such_function", as_text);
  EXPECT_EQ(other.version, "");
  EXPECT_THAT(other.missing, HasSubstr("there_is_no_such_function"));
  EXPECT_THAT(find_library("x", "libc.so.6", "gnu_get_libc_version", nothing).missing, HasSubstr("fails"));
}

}  // namespace
}  // namespace tandem::cli

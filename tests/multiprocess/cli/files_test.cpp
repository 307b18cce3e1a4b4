// SPDX-License-Identifier: Apache-2.0
#include "tandem/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_command.hpp"
#include "tandem/error.hpp"
#include "tandem/usage.hpp"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Files, WritesAllOrNothingAndLeavesNothingBeside) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("out.json", "old");
  test_writable("--trace", path);
  EXPECT_EQ(read_input_file("--input", path, 100000), "old");
  write_atomically(path, std::string(100000, 'x'));
  EXPECT_EQ(read_input_file("--input", path, 100000), std::string(100000, 'x'));
  EXPECT_THAT(folder.files(), ElementsAre("out.json"));
}

TEST(Files, NewFilesHaveTheModeOfTheUmask) {
  const testing::TemporaryFolder folder;
  const mode_t old = umask(027);
  write_atomically(folder.path("new"), "x");
  umask(old);
  struct stat status {};
  ASSERT_EQ(stat(folder.path("new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
}

TEST(Files, SayWhatIsInTheWay) {
  const testing::TemporaryFolder folder;
  const std::string nowhere = folder.path("no/such/folder/x");
  EXPECT_THAT(message_of([&] { test_writable("--trace", nowhere); }), HasSubstr("'" + nowhere + "': No such file"));
  EXPECT_THAT(message_of([&] { test_writable("--trace", folder.path("")); }), HasSubstr("Is a directory"));
  EXPECT_THAT(message_of([&] { test_writable("--trace", "/dev/null"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of([&] { write_atomically("/dev/null", "x"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of([&] { write_atomically(nowhere, "x"); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { read_input_file("--input", nowhere, 1); }),
              HasSubstr("'" + nowhere + "': No such file"));
  EXPECT_THAT(message_of([&] { read_input_file("--input", folder.path(""), 1); }), HasSubstr("Is a directory"));
  EXPECT_THAT(message_of([&] { read_input_file("--input", "/dev/zero", 1000); }), HasSubstr("File too large"));
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#include "base/env.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tandem/error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Starts with none of the variables set, and leaves the environment as it was.
class EnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const Env::Row& row : Env::table()) {
      if (const char* value = std::getenv(row.name.c_str())) before_[row.name] = value;
      ::unsetenv(row.name.c_str());
    }
  }
  void TearDown() override {
    for (const Env::Row& row : Env::table()) ::unsetenv(row.name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(EnvTest, NothingSetReadsAsNothing) {
  const Env env = Env::read();
  EXPECT_FALSE(env.log || env.threads || env.store || env.interface || env.transport || env.rank || env.world_size ||
               env.local_world_size || env.master_addr || env.master_port || env.run_id);
}

TEST_F(EnvTest, EveryVariableReachesItsField) {
  set("TANDEM_LOG", "debug");
  set("TANDEM_THREADS", "3");
  set("TANDEM_STORE", "::1:4000/abcd");
  set("TANDEM_INTERFACE", "eth0");
  set("TANDEM_TRANSPORT", "tcp");
  set("TANDEM_NCCL_LIBRARY", "/opt/nccl/libnccl.so.2");
  set("RANK", "0");
  set("WORLD_SIZE", "8");
  set("LOCAL_WORLD_SIZE", "4");
  set("MASTER_ADDR", "node-1");
  set("MASTER_PORT", "29500");
  set("TORCHELASTIC_RUN_ID", "job 7");
  const Env env = Env::read();
  EXPECT_EQ(env.log, "debug");
  EXPECT_EQ(env.threads, 3);
  EXPECT_EQ(env.store, "::1:4000/abcd");
  EXPECT_EQ(env.interface, "eth0");
  EXPECT_EQ(env.transport, "tcp");
  EXPECT_EQ(env.nccl_library, "/opt/nccl/libnccl.so.2");
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.master_addr, "node-1");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_EQ(env.run_id, "job 7");
}

TEST_F(EnvTest, SetToNothingCountsAsUnset) {
  set("RANK", "");
  set("TANDEM_STORE", "");
  EXPECT_FALSE(Env::read().rank);
  EXPECT_FALSE(Env::read().store);
}

TEST_F(EnvTest, WhatIsNoNumberInRangeNamesVariableAndValue) {
  const std::pair<const char*, const char*> wrong[] = {{"RANK", "x"},
                                                       {"RANK", "1x"},
                                                       {"RANK", " 1"},
                                                       {"RANK", "-1"},
                                                       {"RANK", "2147483648"},
                                                       {"WORLD_SIZE", "0"},
                                                       {"WORLD_SIZE", "1.5"},
                                                       {"MASTER_PORT", "65536"},
                                                       {"MASTER_PORT", "-3"},
                                                       {"TANDEM_THREADS", "0"},
                                                       {"LOCAL_WORLD_SIZE", "0x2"}};
  for (const auto& [name, value] : wrong) {
    set(name, value);
    try {
      Env::read();
      ADD_FAILURE() << name << "=" << value << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(e.what(), HasSubstr(std::string(name) + " is '" + value + "'"));
    }
    ::unsetenv(name);
  }
}

TEST_F(EnvTest, LogLevelCanBeReadWhenAnotherVariableIsWrong) {
  set("RANK", "x");
  set("TANDEM_LOG", "info");
  EXPECT_EQ(Env::read_log(), "info");
}

TEST_F(EnvTest, TableShowsWhatIsSet) {
  set("WORLD_SIZE", "not even a number");
  const std::vector<Env::Row> rows = Env::table();
  EXPECT_EQ(rows.size(), 12U);
  for (const Env::Row& row : rows) {
    EXPECT_EQ(row.value, row.name == "WORLD_SIZE" ? "not even a number" : "") << row.name;
    EXPECT_FALSE(row.meaning.empty()) << row.name;
  }
}

}  // namespace
}  // namespace tandem

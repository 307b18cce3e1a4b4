// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run_command.hpp"
#include "tandem/device.hpp"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json info() {
  const Ended e = run_tandem({"info", "--json"});
  EXPECT_EQ(e.code, 0) << e.err;
  return json::parse(e.out);
}

std::vector<std::string> keys_of(const json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

TEST(Info, JsonAndTextTellTheSame) {
  const json all = info();
  const Ended text = run_tandem({"info"});
  ASSERT_EQ(text.code, 0);
  std::vector<std::string> names;
  for (const auto& t : all["transports"]) names.push_back(t["name"]);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"tcp", "loopback"}));
  EXPECT_EQ(all["kernels"][0]["name"], "cpu");
  std::vector<std::string> told{"TANDEM_LOG", all["version"], "127.0.0.1"};
  for (const auto& l : all["libraries"])
    told.push_back(l["version"].get<std::string>() + l["missing"].get<std::string>());
  for (const auto& u : all["unavailable"]) told.push_back(u["reason"]);
  for (const auto& g : all["cuda"]["gpus"]) told.push_back(g["uuid"]);
  for (const std::string& part : told) {
    EXPECT_THAT(text.out, HasSubstr(part));
    EXPECT_THAT(all.dump(), HasSubstr(json(part).dump()));
  }
}

TEST(Info, JsonHasEverySection) {
  EXPECT_THAT(keys_of(info()),
              ::testing::UnorderedElementsAre("version", "compiler", "host", "devices", "cuda", "transports", "kernels",
                                              "interfaces", "libraries", "routes", "unavailable", "environment"));
}

TEST(Info, GpusAreListedOrTheReasonIsSaid) {
  const json cuda = info()["cuda"];
  EXPECT_THAT(keys_of(cuda), ::testing::UnorderedElementsAre("driver", "driver_release", "runtime", "no_gpus",
                                                             "no_links", "gpus", "pairs"));
  const auto count = static_cast<std::size_t>(Device::cuda_count());
  EXPECT_EQ(cuda["gpus"].size(), count);
  EXPECT_EQ(cuda["pairs"].size(), count * (count > 0 ? count - 1 : 0));
  EXPECT_EQ(cuda["no_gpus"].get<std::string>().empty(), count > 0);
}

TEST(Info, LibrariesAreFoundOrTheReasonIsSaid) {
  const json libraries = info()["libraries"];
  ASSERT_EQ(libraries.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const json& l = libraries[i];
    EXPECT_EQ(l["name"], i == 0 ? "NCCL" : "UCX");
    EXPECT_NE(l["version"].get<std::string>().empty(), l["missing"].get<std::string>().empty()) << l;
  }
}

TEST(Info, WhatCannotBeUsedHasAReason) {
  const json all = info();
  for (const auto& u : all["unavailable"]) EXPECT_FALSE(u["reason"].get<std::string>().empty()) << u;
  if (Device::cuda_count() > 0) return;
  std::vector<std::string> names;
  for (const auto& u : all["unavailable"]) names.push_back(u["name"]);
  EXPECT_THAT(names,
              ::testing::IsSupersetOf({"cuda device", "cuda_p2p transport", "nccl transport", "cuda.generic kernels"}));
}

TEST(Info, ALibraryThatIsMissingIsTheReason) {
  const Ended e = run_tandem({"info", "--json"}, {"TANDEM_NCCL_LIBRARY=/nonexistent/libnccl.so.2"});
  ASSERT_EQ(e.code, 0) << e.err;
  const json all = json::parse(e.out);
  const auto named = [](const char* name) { return [name](const json& x) { return x["name"] == name; }; };
  const json& built = all["transports"];
  if (std::none_of(built.begin(), built.end(), named("nccl"))) GTEST_SKIP() << "nccl is not built into this version";
  const json& unavailable = all["unavailable"];
  const auto nccl = std::find_if(unavailable.begin(), unavailable.end(), named("nccl transport"));
  ASSERT_NE(nccl, unavailable.end());
  EXPECT_THAT((*nccl)["reason"].get<std::string>(), HasSubstr("/nonexistent/libnccl.so.2"));
}

TEST(Info, RoutesAreTriedAndExplained) {
  const Ended e = run_tandem({"info", "--routes", "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  const json routes = json::parse(e.out)["routes"];
  const std::size_t ranks = std::max<std::size_t>(2, static_cast<std::size_t>(Device::cuda_count()));
  ASSERT_EQ(routes.size(), ranks * (ranks - 1) / 2);
  const Ended text = run_tandem({"info", "--routes"});
  for (const json& r : routes) {
    EXPECT_LT(r["from"], r["to"]);
    EXPECT_THAT(text.out, HasSubstr(r["transport"].get<std::string>() + ": " + r["reason"].get<std::string>()));
  }
  if (Device::cuda_count() < 2) {
    EXPECT_EQ(routes[0]["transport"], "tcp");
    EXPECT_EQ(routes[0]["reason"], "the default for ranks on the host device");
  }
}

TEST(Info, WithoutBeingAskedNoRoutesAreTried) { EXPECT_TRUE(info()["routes"].empty()); }

}  // namespace
}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/random.hpp"
#include "tandem/trace.hpp"

namespace tandem {
namespace {

using nlohmann::json;

Span compute(const std::string& name, const std::string& track, std::int64_t begin, std::int64_t end) {
  return {.kind = SpanKind::compute,
          .name = name,
          .track = track,
          .begin_ns = begin,
          .end_ns = end,
          .bytes = 0,
          .path = ""};
}

Span transfer(const std::string& name, const std::string& track, std::int64_t begin, std::int64_t end,
              std::uint64_t bytes) {
  return {.kind = SpanKind::transfer,
          .name = name,
          .track = track,
          .begin_ns = begin,
          .end_ns = end,
          .bytes = bytes,
          .path = "tcp"};
}

// The document as a viewer reads it.
struct Viewed {
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  std::vector<json> slices;

  explicit Viewed(const std::string& text) {
    const json document = json::parse(text);
    for (const json& e : document.at("traceEvents")) {
      if (e.at("ph") == "X") {
        slices.push_back(e);
      } else if (e.at("name") == "process_name") {
        EXPECT_TRUE(processes.emplace(e.at("pid"), e.at("args").at("name")).second);
      } else if (e.at("name") == "thread_name") {
        const std::pair<int, int> key(e.at("pid"), e.at("tid"));
        EXPECT_TRUE(threads.emplace(key, e.at("args").at("name")).second);
      }
    }
  }
  json slice(const std::string& name) const {
    for (const json& e : slices) {
      if (e.at("name") == name) return e;
    }
    ADD_FAILURE() << "no slice " << name;
    return {};
  }
  std::string row_of(const std::string& name) const {
    const json e = slice(name);
    return threads.at({e.at("pid"), e.at("tid")});
  }
};

TEST(Perfetto, EmptyTraceIsValid) {
  EXPECT_TRUE(json::parse(perfetto_json({})).at("traceEvents").empty());
  const std::vector<RankSpans> silent = {{.rank = 4, .clock_offset_ns = 0, .spans = {}}};
  EXPECT_EQ(Viewed(perfetto_json(silent)).processes.at(4), "rank 4");
}

TEST(Perfetto, OneProcessRowPerRankOneThreadRowPerTrack) {
  const std::vector<RankSpans> ranks = {
      {.rank = 0,
       .clock_offset_ns = 0,
       .spans = {compute("compute/attention", "compute", 1000, 5500),
                 transfer("gather/kv/1", "from rank 1", 1500, 2001, 4096)}},
      {.rank = 1,
       .clock_offset_ns = 700,
       .spans = {compute("late", "compute", 300, 301), compute("later", "compute", 400, 500)}}};
  const Viewed v(perfetto_json(ranks));
  EXPECT_EQ(v.processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  EXPECT_EQ(v.threads.size(), 3U);
  EXPECT_EQ(v.slices.size(), 4U);
  EXPECT_EQ(v.row_of("compute/attention"), "compute");
  EXPECT_EQ(v.row_of("gather/kv/1"), "from rank 1");
  EXPECT_EQ(v.slice("late").at("tid"), v.slice("later").at("tid"));
  EXPECT_EQ(v.slice("late").at("pid"), 1);

  std::set<int> ids = {0, 1};  // thread ids differ from each other and from process ids
  for (const auto& [key, name] : v.threads) EXPECT_TRUE(ids.insert(key.second).second) << name;
}

TEST(Perfetto, TimesAreMicrosecondsOnOneClockFromTheEarliestSpan) {
  const std::vector<RankSpans> ranks = {
      {.rank = 0, .clock_offset_ns = 0, .spans = {compute("a", "t", 9'000'000'000'001'000, 9'000'000'000'003'007)}},
      {.rank = 1, .clock_offset_ns = 8'999'999'999'000'000, .spans = {compute("b", "t", 1'000'999, 3'000'999)}}};
  const std::string text = perfetto_json(ranks);
  const Viewed v(text);
  EXPECT_EQ(v.slice("b").at("ts"), 0.0);
  EXPECT_EQ(v.slice("b").at("dur"), 2000.0);
  EXPECT_NE(text.find(R"("ts":0.001,"dur":2.007)"), std::string::npos) << text;
}

TEST(Perfetto, TransfersCarryBytesAndPath) {
  const std::vector<RankSpans> ranks = {
      {.rank = 0,
       .clock_offset_ns = 0,
       .spans = {transfer("g", "from rank 1", 0, 1, (1ULL << 63) + 1), compute("c", "t", 0, 1)}}};
  const Viewed v(perfetto_json(ranks));
  EXPECT_EQ(v.slice("g").at("args").at("bytes").get<std::uint64_t>(), (1ULL << 63) + 1);
  EXPECT_EQ(v.slice("g").at("args").at("path"), "tcp");
  EXPECT_EQ(v.slice("g").at("cat"), "transfer");
  EXPECT_EQ(v.slice("c").at("cat"), "compute");
  EXPECT_TRUE(v.slice("c").at("args").empty());
}

TEST(Perfetto, NamesAreEscaped) {
  std::string all;
  for (int c = 0; c < 128; ++c) all.push_back(static_cast<char>(c));
  const std::string good = "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80";
  Span s = transfer(all, "track \"1\"\n", 0, 1, 0);
  s.path = good;
  const std::vector<RankSpans> ranks = {{.rank = 0, .clock_offset_ns = 0, .spans = {s}}};
  const Viewed v(perfetto_json(ranks));
  EXPECT_EQ(v.slices.at(0).at("name"), all);
  EXPECT_EQ(v.slices.at(0).at("args").at("path"), good);
  EXPECT_EQ(v.row_of(all), "track \"1\"\n");
}

// json::parse refuses what is not UTF-8.
TEST(Perfetto, BytesThatAreNotUtf8AreReplaced) {
  const char* broken[] = {
      "\x80", "\xC3",    "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF0\x8F\xBF\xBF",
      "\xFF", "\xE2\x82"};
  for (const char* name : broken) {
    const std::string text = std::string("a") + name + "b";
    const std::vector<RankSpans> ranks = {{.rank = 0, .clock_offset_ns = 0, .spans = {compute(text, text, 0, 1)}}};
    const std::string seen = Viewed(perfetto_json(ranks)).slices.at(0).at("name");
    EXPECT_EQ(seen.substr(0, 4), "a\xEF\xBF\xBD");
    EXPECT_EQ(seen.back(), 'b');
  }
  auto rng = testing::test_rng(1);
  for (int i = 0; i < 500; ++i) {
    std::string name(rng() % 8, '\0');
    for (char& c : name) c = static_cast<char>(rng() % 3 == 0 ? rng() : 0xE0 + rng() % 0x20);
    const std::vector<RankSpans> ranks = {{.rank = 0, .clock_offset_ns = 0, .spans = {compute(name, name, 0, 1)}}};
    ASSERT_NO_THROW(Viewed(perfetto_json(ranks))) << i;
  }
}

// The viewer drops slices of one row that overlap in part: each row's must be nested or apart, and none may be missing.
TEST(Perfetto, RowsNest) {
  auto rng = testing::test_rng(2);
  for (int round = 0; round < 25; ++round) {
    RankSpans rank{.rank = 0, .clock_offset_ns = 0, .spans = {}};
    for (int i = 0; i < 30; ++i) {
      const auto begin = static_cast<std::int64_t>(rng() % 50) * 1000;
      rank.spans.push_back(
          transfer(std::to_string(i), "from rank 1", begin, begin + static_cast<std::int64_t>(rng() % 20) * 1000, 1));
    }
    const std::vector<RankSpans> ranks = {rank};
    const Viewed v(perfetto_json(ranks));
    ASSERT_EQ(v.slices.size(), rank.spans.size());
    for (const auto& [key, name] : v.threads) EXPECT_EQ(name.substr(0, 11), "from rank 1");
    for (const json& a : v.slices) {
      for (const json& b : v.slices) {
        if (a.at("tid") != b.at("tid")) continue;
        const double a0 = a.at("ts"), a1 = a0 + a.at("dur").get<double>();
        const double b0 = b.at("ts"), b1 = b0 + b.at("dur").get<double>();
        ASSERT_FALSE(a0 < b0 && b0 < a1 && a1 < b1) << a << b;
      }
    }
  }
}

TEST(Perfetto, SpansThatNestOrFollowShareARow) {
  const std::vector<RankSpans> ranks = {
      {.rank = 0,
       .clock_offset_ns = 0,
       .spans = {compute("inner", "t", 2, 5), compute("outer", "t", 0, 10), compute("next", "t", 10, 20),
                 compute("empty", "t", 20, 20), compute("crossing", "t", 15, 25)}}};
  const Viewed v(perfetto_json(ranks));
  EXPECT_EQ(v.row_of("inner"), "t");
  EXPECT_EQ(v.row_of("outer"), "t");
  EXPECT_EQ(v.row_of("next"), "t");
  EXPECT_EQ(v.row_of("empty"), "t");
  EXPECT_EQ(v.row_of("crossing"), "t (2)");
}

}  // namespace
}  // namespace tandem

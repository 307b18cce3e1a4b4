// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include "support/promptly.hpp"
#include "support/random.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::in_ms;
using testing::soon;
using testing::store_kinds;

class StoreCalls : public testing::BothStores {};
INSTANTIATE_TEST_SUITE_P(Kinds, StoreCalls, ::testing::ValuesIn(store_kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(StoreCalls, WhatOneRankSetsAnotherGets) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  a->set("key", "value", soon());
  EXPECT_EQ(b->get("key", soon()), "value");
  b->set("key", "other", soon());
  EXPECT_EQ(a->get("key", soon()), "other");
}

TEST_P(StoreCalls, KeysAndValuesAreAnyBytes) {
  const auto w = world(1);
  const auto s = w->join(0);
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  for (const std::string& text : {std::string(), bytes, std::string(3, '\0')}) {
    s->set(text, text, soon());
    EXPECT_EQ(s->get(text, soon()), text);
  }
}

TEST_P(StoreCalls, LargeValuesArrive) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  std::string value(5'000'001, '\0');
  auto rng = testing::test_rng();
  for (char& c : value) c = static_cast<char>(rng());
  a->set("large", value, soon());
  EXPECT_TRUE(b->get("large", soon()) == value);
}

TEST_P(StoreCalls, TryGetDoesNotWait) {
  const auto w = world(1);
  const auto s = w->join(0);
  EXPECT_EQ(s->try_get("key", soon()), std::nullopt);
  s->set("key", "", soon());
  EXPECT_EQ(s->try_get("key", soon()), "");
  s->erase("key", soon());
  EXPECT_EQ(s->try_get("key", soon()), std::nullopt);
  s->erase("key", soon());
}

TEST_P(StoreCalls, AddCountsFromZero) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  EXPECT_EQ(a->add("n", 5, soon()), 5);
  EXPECT_EQ(b->add("n", -7, soon()), -2);
  EXPECT_EQ(a->get("n", soon()), "-2");
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(a->add("most", most, soon()), most);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { a->add("most", 1, soon()); }).what(), HasSubstr("most"));
  EXPECT_EQ(a->add("most", 0, soon()), most);
}

TEST_P(StoreCalls, AddToTextIsAnErrorThatNamesTheKey) {
  const auto w = world(1);
  const auto s = w->join(0);
  for (const char* text : {"text", "", "12x", " 1", "99999999999999999999"}) {
    s->set("word", text, soon());
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { s->add("word", 1, soon()); }).what(), HasSubstr("word"));
    EXPECT_EQ(s->get("word", soon()), text);
  }
}

TEST_P(StoreCalls, GetWaitsForTheKey) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  auto waiting = std::async(std::launch::async, [&] { return b->get("later", soon()); });
  auto counting = std::async(std::launch::async, [&] { return b->get("counter", soon()); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  a->set("another", "x", soon());
  a->set("later", "now", soon());
  EXPECT_EQ(waiting.get(), "now");
  a->add("counter", 3, soon());
  EXPECT_EQ(counting.get(), "3");
}

TEST_P(StoreCalls, GetTimesOutAndNamesKeyAndRank) {
  const auto w = world(2);
  const auto s = w->join(1);
  const auto begin = Deadline::Clock::now();
  const Error e = error_of(ErrorCode::timeout, [&] { s->get("never-set", in_ms(50)); });
  EXPECT_THAT(e.what(), HasSubstr("never-set"));
  EXPECT_THAT(e.what(), HasSubstr("rank 1"));
  EXPECT_EQ(e.rank(), 1);
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::milliseconds(50));
  EXPECT_LT(Deadline::Clock::now() - begin, testing::promptly);
  // A wait that was given up does not disturb later ones.
  s->set("never-set", "after all", soon());
  EXPECT_EQ(s->get("never-set", soon()), "after all");
}

TEST_P(StoreCalls, ManyThreadsShareOneStore) {
  constexpr int threads = 8, rounds = 50;
  const auto w = world(2);
  const std::shared_ptr<Store> stores[] = {w->join(0), w->join(1)};
  std::vector<std::thread> running;
  std::mutex mutex;
  std::set<std::int64_t> counts;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      Store& mine = *stores[t % 2];
      Store& other = *stores[(t + 1) % 2];
      for (int i = 0; i < rounds; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        // Thread t answers thread t-1, whose key it waits for first: requests of one connection overlap.
        mine.set(key, key, soon());
        const std::string left = std::to_string((t + threads - 1) % threads) + "/" + std::to_string(i);
        EXPECT_EQ(other.get(left, soon()), left);
        const std::int64_t n = mine.add("count", 1, soon());
        std::lock_guard lock(mutex);
        EXPECT_TRUE(counts.insert(n).second) << n << " was handed out twice";
      }
    });
  }
  for (auto& t : running) t.join();
  EXPECT_EQ(counts.size(), threads * rounds);
  EXPECT_EQ(*counts.rbegin(), threads * rounds);
}

TEST_P(StoreCalls, CloseWakesWaitersAndRefusesLaterCalls) {
  const auto w = world(2);
  const auto s = w->join(0), other = w->join(1);
  std::vector<std::future<void>> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(std::async(std::launch::async, [&] { s->get("never", soon()); }));
  }
  EXPECT_EQ(waiting.front().wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  s->close();
  for (auto& f : waiting) error_of(ErrorCode::aborted, [&] { f.get(); });
  error_of(ErrorCode::aborted, [&] { s->set("a", "b", soon()); });
  error_of(ErrorCode::aborted, [&] { s->get("a", soon()); });
  error_of(ErrorCode::aborted, [&] { s->try_get("a", soon()); });
  error_of(ErrorCode::aborted, [&] { s->add("a", 1, soon()); });
  error_of(ErrorCode::aborted, [&] { s->erase("a", soon()); });
  error_of(ErrorCode::aborted, [&] { s->leave(soon()); });
  s->close();
  other->set("a", "b", soon());
  EXPECT_EQ(other->get("a", soon()), "b");
}

TEST_P(StoreCalls, AfterLeaveCallsAreInvalidUsage) {
  const auto w = world(2);
  const auto s = w->join(0), other = w->join(1);
  auto waiting = std::async(std::launch::async, [&] { s->get("never", soon()); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  s->leave(soon());
  error_of(ErrorCode::invalid_usage, [&] { waiting.get(); });
  error_of(ErrorCode::invalid_usage, [&] { s->set("a", "b", soon()); });
  s->leave(soon());
  s->close();
  error_of(ErrorCode::aborted, [&] { s->set("a", "b", soon()); });
  other->leave(soon());
}

TEST_P(StoreCalls, ARankJoinsOnce) {
  const auto w = world(3);
  auto a = w->join(0);
  const auto refusal = [&](int rank) -> std::string {
    try {
      w->join(rank);
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::invalid_argument || e.code() == ErrorCode::invalid_usage) << e.what();
      EXPECT_EQ(e.rank(), rank);
      return e.what();
    }
    return "joined";
  };
  EXPECT_THAT(refusal(0), HasSubstr("rank 0 is taken"));
  EXPECT_THAT(refusal(3), HasSubstr("rank 3 is out of range"));
  EXPECT_THAT(refusal(-1), HasSubstr("rank -1 is out of range"));
  a->set("still", "good", soon());

  const auto b = w->join(1);
  testing::NoticeLog log;
  const auto handle = b->listen(log.listener());
  a.reset();
  log.wait_for(Store::Notice::Kind::peer_lost, 0);
  EXPECT_THAT(refusal(0), HasSubstr("rank 0 was lost"));
  w->join(2)->leave(soon());
  EXPECT_THAT(refusal(2), HasSubstr("rank 2 has already left"));
}

}  // namespace
}  // namespace tandem

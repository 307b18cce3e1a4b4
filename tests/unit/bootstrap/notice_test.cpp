// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::in_ms;
using testing::NoticeLog;
using testing::soon;
using Kind = Store::Notice::Kind;

class Notices : public testing::BothStores {};
INSTANTIATE_TEST_SUITE_P(Kinds, Notices, ::testing::ValuesIn(testing::store_kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Notices, AnAnnouncementReachesAllOthersButNotItsSender) {
  const auto w = world(3);
  const std::shared_ptr<Store> stores[] = {w->join(0), w->join(1), w->join(2)};
  NoticeLog logs[3];
  std::shared_ptr<void> handles[3];
  for (std::size_t r = 0; r < 3; ++r) handles[r] = stores[r]->listen(logs[r].listener());
  stores[1]->announce({Kind::aborted, 1, "disk full"});
  EXPECT_EQ(logs[0].wait_for(Kind::aborted, 1).reason, "disk full");
  EXPECT_EQ(logs[2].wait_for(Kind::aborted, 1).reason, "disk full");
  // What rank 1 hears next comes after what it would have heard of itself.
  stores[0]->announce({Kind::aborted, 0, "because of rank 1"});
  logs[1].wait_for(Kind::aborted, 0);
  EXPECT_EQ(logs[1].all().size(), 1U);
}

TEST_P(Notices, DestructionWithoutLeaveIsALoss) {
  const auto w = world(2);
  const auto a = w->join(0);
  NoticeLog log;
  const auto handle = a->listen(log.listener());
  w->join(1);
  const Store::Notice notice = log.wait_for(Kind::peer_lost, 1);
  EXPECT_FALSE(notice.reason.empty());
  EXPECT_EQ(log.all().size(), 1U);
}

TEST_P(Notices, CloseWithoutLeaveIsALossAfterTheAnnouncement) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  NoticeLog log;
  const auto handle = a->listen(log.listener());
  b->announce({Kind::aborted, 1, "why"});
  b->close();
  log.wait_for(Kind::peer_lost, 1);
  ASSERT_EQ(log.all().size(), 2U);
  EXPECT_EQ(log.all()[0].kind, Kind::aborted);
  EXPECT_EQ(log.all()[0].reason, "why");
}

TEST_P(Notices, LeaveIsNoLoss) {
  const auto w = world(2);
  const auto a = w->join(0);
  NoticeLog log;
  const auto handle = a->listen(log.listener());
  auto b = w->join(1);
  NoticeLog own;
  const auto own_handle = b->listen(own.listener());
  b->leave(soon());
  b.reset();
  log.wait_for(Kind::left, 1);
  // A round trip behind the destruction: a loss would have been told by now.
  a->set("key", "value", soon());
  a->get("key", soon());
  EXPECT_EQ(log.all().size(), 1U);
  EXPECT_TRUE(own.all().empty());
}

TEST_P(Notices, LateListenersAndLateRanksHearWhatCameBefore) {
  const auto w = world(4);
  const auto a = w->join(0);
  NoticeLog first;
  const auto first_handle = a->listen(first.listener());
  w->join(1);
  w->join(2)->leave(soon());
  first.wait_for(Kind::peer_lost, 1);
  first.wait_for(Kind::left, 2);
  NoticeLog second;
  const auto second_handle = a->listen(second.listener());
  second.wait_for(Kind::peer_lost, 1);
  second.wait_for(Kind::left, 2);
  EXPECT_EQ(second.all().size(), 2U);
  const auto late = w->join(3);
  NoticeLog third;
  const auto third_handle = late->listen(third.listener());
  third.wait_for(Kind::peer_lost, 1);
  third.wait_for(Kind::left, 2);
  EXPECT_EQ(third.all().size(), 2U);
}

TEST_P(Notices, AnEndedListenerIsNeverCalledAgain) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  for (int round = 0; round < 20; ++round) {
    auto alive = std::make_unique<std::atomic<int>>(0);
    auto handle = a->listen([&counter = *alive](const Store::Notice&) { ++counter; });
    b->announce({Kind::aborted, 1, std::to_string(round)});
    handle.reset();
    alive.reset();  // a call from now on would touch freed memory
  }
}

TEST_P(Notices, EndingAListenerWaitsForItsRunningCall) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  std::promise<void> entered, release;
  std::atomic<bool> finished = false;
  auto handle = a->listen([&](const Store::Notice&) {
    entered.set_value();
    release.get_future().wait();
    finished = true;
  });
  b->announce({Kind::aborted, 1, "x"});
  entered.get_future().wait();
  auto ending = std::async(std::launch::async, [&] {
    handle.reset();
    return finished.load();
  });
  EXPECT_EQ(ending.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  release.set_value();
  EXPECT_TRUE(ending.get());
}

TEST_P(Notices, AListenerMayThrowAndMayNotWaitForTheStore) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  std::promise<ErrorCode> code;
  const auto thrower = a->listen([](const Store::Notice&) { throw std::runtime_error("listener"); });
  const auto waiter = a->listen([&](const Store::Notice&) {
    try {
      a->get("key", soon());
      code.set_value(ErrorCode::ok);
    } catch (const Error& e) {
      code.set_value(e.code());
    }
  });
  b->announce({Kind::aborted, 1, "x"});
  EXPECT_EQ(code.get_future().get(), ErrorCode::invalid_usage);
  a->set("still", "alive", soon());
}

TEST_P(Notices, AListenerMayCloseItsStore) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  const auto handle = a->listen([&](const Store::Notice&) {
    a->announce({Kind::aborted, 0, "because of rank 1"});
    a->close();
  });
  NoticeLog log;
  const auto other = b->listen(log.listener());
  auto waiting = std::async(std::launch::async, [&] { a->get("never", soon()); });
  b->announce({Kind::aborted, 1, "x"});
  error_of(ErrorCode::aborted, [&] { waiting.get(); });
  log.wait_for(Kind::aborted, 0);
}

TEST_P(Notices, AnnounceAfterEverythingEndedDoesNothing) {
  const auto w = world(2);
  const auto a = w->join(0), b = w->join(1);
  a->leave(soon());
  a->announce({Kind::aborted, 0, "too late"});
  b->close();
  b->announce({Kind::aborted, 1, "too late"});
}

}  // namespace
}  // namespace tandem

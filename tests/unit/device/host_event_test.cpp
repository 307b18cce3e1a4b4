// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "device/impl.hpp"
#include "host_device_support.hpp"
#include "tandem/device.hpp"
#include "tandem/trace.hpp"

namespace tandem {
namespace {

using namespace testing_host;

// With two queues, the first two streams are on different ones.
class EventTest : public ::testing::TestWithParam<int> {
 protected:
  const Device device_ = Device::host({.queues = GetParam()});
  const Stream a_ = device_.create_stream({.name = "a"});
  const Stream b_ = device_.create_stream({.name = "b"});
  const Event event_ = device_.create_event();
};

INSTANTIATE_TEST_SUITE_P(Queues, EventTest, ::testing::Values(0, 2));

TEST_P(EventTest, OrdersOneStreamBehindAnother) {
  const Gate gate(device_);
  int value = 0;  // not atomic: a sanitizer sees it if the event orders nothing
  gate.hold(a_);
  a_.run([&] { value = 5; });
  a_.record(event_);
  b_.wait(event_);
  int seen = -1;
  b_.run([&] { seen = value; });
  EXPECT_FALSE(event_.query());
  EXPECT_ERROR(event_.synchronize(shortly()), ErrorCode::timeout, "event");
  EXPECT_FALSE(b_.idle());
  gate.open();
  b_.synchronize(soon());
  EXPECT_EQ(seen, 5);
  EXPECT_TRUE(event_.query());
  EXPECT_NO_THROW(event_.synchronize(shortly()));
}

TEST_P(EventTest, NeverRecordedHoldsNothingUp) {
  EXPECT_TRUE(event_.query());
  EXPECT_NO_THROW(event_.synchronize(shortly()));
  b_.wait(event_);
  EXPECT_NO_THROW(b_.synchronize(soon()));
}

TEST_P(EventTest, WaitMeansTheRecordBeforeIt) {
  const Gate gate(device_);
  b_.wait(event_);
  gate.hold(a_);
  a_.record(event_);
  EXPECT_NO_THROW(b_.synchronize(soon()));  // a record after the wait does not count
  b_.wait(event_);
  EXPECT_ERROR(b_.synchronize(shortly()), ErrorCode::timeout, "'b'");
}

TEST_P(EventTest, RecordingAgainDoesNotMoveEarlierWaits) {
  const Gate first(device_), second(device_);
  first.hold(a_);
  a_.record(event_);
  b_.wait(event_);
  second.hold(a_);
  a_.record(event_);
  first.open();
  EXPECT_NO_THROW(b_.synchronize(soon()));
  EXPECT_FALSE(event_.query());
  second.open();
  EXPECT_NO_THROW(event_.synchronize(soon()));
}

TEST_P(EventTest, OutlivesStreamsAndDevice) {
  Event event;
  {
    const Device device = Device::host({.queues = GetParam()});
    const Stream stream = device.create_stream();
    event = device.create_event();
    stream.run([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    stream.record(event);
  }
  EXPECT_NO_THROW(event.synchronize(soon()));
}

TEST_P(EventTest, WorksAcrossHostDevices) {
  const Device other = Device::host();
  const Stream stream = other.create_stream();
  const Gate gate(device_);
  gate.hold(a_);
  a_.record(event_);
  stream.wait(event_);
  EXPECT_ERROR(stream.synchronize(shortly()), ErrorCode::timeout, "not done");
  gate.open();
  EXPECT_NO_THROW(stream.synchronize(soon()));
}

class SignalTest : public EventTest {
 protected:
  const std::shared_ptr<detail::SignalImpl> signal_ = device_.impl().create_signal();
};

INSTANTIATE_TEST_SUITE_P(Queues, SignalTest, ::testing::Values(0, 2));

TEST_P(SignalTest, ReleasesEveryWaiterAndPublishesWrites) {
  int value = 0;
  int seen[2] = {};
  a_.impl().wait(signal_, {});
  a_.run([&] { seen[0] = value; });
  b_.impl().wait(signal_, {});
  b_.run([&] { seen[1] = value; });
  std::thread setter([&] {
    value = 9;
    signal_->set();
    signal_->set();
  });
  device_.synchronize(soon());
  setter.join();
  EXPECT_EQ(seen[0], 9);
  EXPECT_EQ(seen[1], 9);
  EXPECT_TRUE(signal_->is_set());
  EXPECT_TRUE(signal_->wait(shortly()));
}

TEST_P(SignalTest, HostWaitTimesOut) {
  EXPECT_FALSE(signal_->is_set());
  EXPECT_FALSE(signal_->wait(shortly()));
}

TEST_P(SignalTest, ReportsWhenTheStreamReachedItAndWhenItWasReleased) {
  std::int64_t reached = 0, begin = 0, end = 0;
  std::thread::id task_thread, report_thread;
  a_.run([&] {
    task_thread = std::this_thread::get_id();
    reached = now_ns();
  });
  a_.impl().wait(signal_, [&](std::int64_t b, std::int64_t e) {
    begin = b;
    end = e;
    report_thread = std::this_thread::get_id();
  });
  std::int64_t after = 0;
  a_.run([&] { after = now_ns(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::int64_t before_set = now_ns();
  signal_->set();
  a_.synchronize(soon());
  EXPECT_LE(reached, begin);
  EXPECT_LE(before_set, end);
  EXPECT_LE(begin, end);
  EXPECT_LE(end, after);
  EXPECT_EQ(report_thread, task_thread);
}

TEST_P(SignalTest, AlreadySetIsReportedToo) {
  signal_->set();
  std::int64_t begin = -1, end = -2;
  const std::int64_t before = now_ns();
  a_.impl().wait(signal_, [&](std::int64_t b, std::int64_t e) {
    begin = b;
    end = e;
  });
  a_.synchronize(soon());
  EXPECT_LE(before, begin);
  EXPECT_EQ(begin, end);  // no stall
}

TEST_P(SignalTest, LivesWhileAStreamWaits) {
  {
    const std::shared_ptr<detail::SignalImpl> signal = device_.impl().create_signal();
    a_.impl().wait(signal, {});
    signal->set();
  }
  EXPECT_NO_THROW(a_.synchronize(soon()));
}

}  // namespace
}  // namespace tandem

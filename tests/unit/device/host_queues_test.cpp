// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "host_device_support.hpp"
#include "tandem/device.hpp"

namespace tandem {
namespace {

using namespace testing_host;

void expect_blocked(const Stream& stream) {
  stream.run([] {});
  EXPECT_ERROR(stream.synchronize(shortly()), ErrorCode::timeout, "not done");
}

void expect_free(const Stream& stream) {
  stream.run([] {});
  EXPECT_NO_THROW(stream.synchronize(soon()));
}

TEST(FoldedQueues, OneQueueHoldsUpEveryStreamButCopies) {
  const Device device = Device::host({.queues = 1});
  const Stream waiting = device.create_stream(), other = device.create_stream();
  const Stream copies = device.create_stream({.copy = true});
  const Gate gate(device);
  gate.hold(waiting);
  expect_blocked(other);
  expect_free(copies);
  gate.open();
  expect_free(other);
}

TEST(FoldedQueues, StreamsTakeQueuesInTurnAndCopyStreamsDoNotCount) {
  const Device device = Device::host({.queues = 2});
  const Stream s0 = device.create_stream();
  const Stream c0 = device.create_stream({.copy = true});
  const Stream s1 = device.create_stream();
  const Stream s2 = device.create_stream();
  const Stream c1 = device.create_stream({.copy = true});
  const Stream s3 = device.create_stream();
  {
    const Gate gate(device);
    gate.hold(s0);
    expect_free(s1);
    expect_blocked(s2);
    expect_free(s3);
    expect_free(c1);
  }
  {
    const Gate gate(device);
    gate.hold(c0);
    expect_blocked(c1);
    expect_free(s0);
    expect_free(s3);
  }
  device.synchronize(soon());
}

TEST(FoldedQueues, FreeThreadedStreamsNeverHoldEachOtherUp) {
  const Device device = Device::host();
  const Stream waiting = device.create_stream(), other = device.create_stream();
  const Gate gate(device);
  gate.hold(waiting);
  expect_free(other);
}

// The order that deadlocks a GPU with one hardware queue: the release is enqueued behind the wait that it should
// release.
TEST(FoldedQueues, ReleaseBehindItsOwnWaitIsStuckWithOneQueueOnly) {
  for (const int queues : {1, 2}) {
    const Device device = Device::host({.queues = queues});
    const Stream consumer = device.create_stream(), producer = device.create_stream();
    const Gate gate(device);
    gate.hold(consumer);
    producer.run([&gate] { gate.open(); });
    if (queues == 1) {
      EXPECT_ERROR(consumer.synchronize(shortly()), ErrorCode::timeout, "not done");
      gate.open();  // only a store from outside helps
    }
    EXPECT_NO_THROW(consumer.synchronize(soon()));
    device.synchronize(soon());
  }
}

TEST(FoldedQueues, IdleAndFailuresBelongToStreamsNotQueues) {
  const Device device = Device::host({.queues = 1});
  const Stream waiting = device.create_stream(), other = device.create_stream();
  const Gate gate(device);
  gate.hold(waiting);
  EXPECT_FALSE(waiting.idle());
  EXPECT_TRUE(other.idle());
  EXPECT_NO_THROW(other.synchronize(shortly()));  // it has no work of its own
}

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

class Lifetime : public ::testing::TestWithParam<int> {
 protected:
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return threads() == before_; })) << threads();
  }

  const Device make() const { return Device::host({.queues = GetParam()}); }

  // A thread that sanitizers start with the first one of the process does not count.
  const std::ptrdiff_t before_ = (std::thread([] {}).join(), threads());
};

INSTANTIATE_TEST_SUITE_P(Queues, Lifetime, ::testing::Values(0, 1, 3));

TEST_P(Lifetime, ThreadsEndWithTheHandles) {
  std::optional<Stream> last;
  {
    const Device device = make();
    std::vector<Stream> streams;
    for (int i = 0; i < 5; ++i) streams.push_back(device.create_stream());
    streams.push_back(device.create_stream({.copy = true}));
    for (const Stream& s : streams) s.run([] {});
    EXPECT_EQ(threads() - before_, GetParam() == 0 ? 6 : GetParam() + 1);
    device.synchronize(soon());
    last = streams.back();
  }
  expect_free(*last);  // a stream keeps its device
}

TEST_P(Lifetime, DroppedStreamDoesNotWaitAndItsWorkStillRuns) {
  std::atomic<bool> ran{false};
  std::optional<Device> device = make();
  const Gate gate(*device);
  std::optional<Stream> stream = device->create_stream();
  gate.hold(*stream);
  stream->run([&] { ran = true; });
  stream.reset();  // would hang here if it waited
  device.reset();
  EXPECT_FALSE(ran);
  gate.open();
  EXPECT_TRUE(eventually([&] { return ran.load(); }));
}

TEST_P(Lifetime, LastHandleMayGoInsideATaskOfItsOwnQueue) {
  std::atomic<bool> only_one_left{false};
  std::atomic<bool> gone{false};
  {
    const Stream stream = make().create_stream();
    stream.run([last = std::optional<Stream>(stream), &only_one_left, &gone]() mutable {
      eventually([&] { return only_one_left.load(); });
      last.reset();  // stream, queue and device go on the queue's own thread
      gone = true;
    });
  }
  only_one_left = true;
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
}

TEST_P(Lifetime, LastHandleMayGoWithTheTaskThatHoldsIt) {
  const auto only_one_left = std::make_shared<std::atomic<bool>>(false);
  {
    const Stream stream = make().create_stream();
    stream.run([stream, only_one_left] { eventually([&] { return only_one_left->load(); }); });
  }
  *only_one_left = true;  // the handle goes when the queue drops the task
}

TEST_P(Lifetime, LastHandleMayGoOnAnotherQueue) {
  std::atomic<bool> ran{false};
  {
    const Device other = Device::host();
    const Stream elsewhere = other.create_stream();
    const Device device = make();
    const Stream stream = device.create_stream({.copy = true});
    stream.run([] {});
    elsewhere.run([stream, device, &ran] { ran = true; });
  }
  EXPECT_TRUE(eventually([&] { return ran.load(); }));
}

TEST_P(Lifetime, ManyShortStreamsLeaveNothing) {
  const Device device = make();
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) device.create_stream().run([&] { ++ran; });
  device.synchronize(soon());
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace tandem

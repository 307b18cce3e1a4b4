// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/impl.hpp"
#include "host_device_support.hpp"
#include "tandem/device.hpp"
#include "tandem/trace.hpp"

namespace tandem {
namespace {

using namespace testing_host;
using ::testing::HasSubstr;

class StreamTest : public ::testing::TestWithParam<int> {
 protected:
  const Device device_ = Device::host({.queues = GetParam(), .name = "box"});
};

INSTANTIATE_TEST_SUITE_P(Queues, StreamTest, ::testing::Values(0, 1, 2));

TEST_P(StreamTest, TasksRunInOrder) {
  const Stream stream = device_.create_stream();
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) stream.run([&seen, i] { seen.push_back(i); });
  stream.synchronize(soon());
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(seen, expected);
  EXPECT_TRUE(stream.idle());
}

TEST_P(StreamTest, CallsReturnBeforeTheWorkRan) {
  const Stream stream = device_.create_stream();
  const Gate gate(device_);
  gate.hold(stream);
  bool ran = false;
  stream.run([&] { ran = true; });
  EXPECT_FALSE(stream.idle());
  EXPECT_ERROR(stream.synchronize(shortly()), ErrorCode::timeout, "stream 'stream' was not done");
  gate.open();
  stream.synchronize(soon());
  EXPECT_TRUE(ran);
}

TEST_P(StreamTest, CopiesBytesInOrderWithTasks) {
  const Stream stream = device_.create_stream();
  std::uint64_t a = 0, b = 0;
  stream.run([&] { a = 42; });
  stream.copy(&b, &a, sizeof(a));
  stream.run([&] { a = 0; });
  stream.copy(nullptr, nullptr, 0);
  stream.synchronize(soon());
  EXPECT_EQ(b, 42U);
}

TEST_P(StreamTest, SynchronizeWaitsForWorkGivenSoFarOnly) {
  const Stream stream = device_.create_stream();
  std::atomic<bool> enough{false};
  // Each gives the next before it is done: the stream is never without work, and must not have to be.
  std::function<void()> again = [&] {
    if (!enough) stream.run(again);
  };
  stream.run(again);
  EXPECT_NO_THROW(stream.synchronize(soon()));
  enough = true;
  device_.synchronize(soon());
}

TEST_P(StreamTest, WhatATaskHoldsIsGoneWhenItIsDone) {
  const Stream stream = device_.create_stream();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  stream.run([held = std::move(held)] {});
  stream.synchronize(soon());
  EXPECT_TRUE(watch.expired());
}

TEST_P(StreamTest, FirstExceptionIsKeptAndLaterWorkRuns) {
  const Stream stream = device_.create_stream({.name = "compute"});
  const Event event = device_.create_event();
  bool ran = false;
  stream.run([] { throw std::runtime_error("first fault"); });
  stream.run([] { throw std::runtime_error("second fault"); });
  stream.run([&] { ran = true; });
  stream.record(event);
  event.synchronize(soon());  // whoever waits is released
  EXPECT_TRUE(ran);
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(stream.synchronize(soon()), ErrorCode::device, "task on stream 'compute' failed: first fault");
    EXPECT_ERROR(device_.synchronize(soon()), ErrorCode::device, "first fault");
  }
}

TEST_P(StreamTest, ExceptionsBelongToTheirStream) {
  const Stream bad = device_.create_stream({.name = "bad"});
  const Stream good = device_.create_stream({.name = "good"});
  bad.run([] { throw 7; });
  good.run([] {});
  EXPECT_NO_THROW(good.synchronize(soon()));
  EXPECT_ERROR(bad.synchronize(soon()), ErrorCode::device, "'bad' failed");
}

TEST_P(StreamTest, ExceptionKeepsRankAndOperation) {
  const Stream stream = device_.create_stream();
  stream.run([] { throw Error(ErrorCode::transport, "lost", 3, 17); });
  try {
    stream.synchronize(soon());
    FAIL() << "did not throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::device);
    EXPECT_EQ(e.rank(), 3);
    EXPECT_EQ(e.op(), 17);
    EXPECT_STREQ(e.what(), "device: a task on stream 'stream' failed: transport: lost (rank 3, op 17)");
  }
}

TEST_P(StreamTest, SynchronizeInsideItsOwnTaskIsRefused) {
  const Stream stream = device_.create_stream();
  stream.run([&] { EXPECT_ERROR(stream.synchronize(soon()), ErrorCode::invalid_usage, "by a task"); });
  stream.run([&] { EXPECT_ERROR(device_.synchronize(soon()), ErrorCode::invalid_usage, "by a task"); });
  stream.synchronize(soon());
}

TEST_P(StreamTest, DeviceSynchronizeFollowsWorkFromStreamToStream) {
  const Stream streams[] = {device_.create_stream(), device_.create_stream(), device_.create_stream()};
  int hops = 0;
  std::function<void()> hop = [&] {
    if (++hops < 300) streams[hops % 3].run(hop);
  };
  streams[0].run(hop);
  device_.synchronize(soon());
  EXPECT_EQ(hops, 300);
}

TEST_P(StreamTest, DeviceSynchronizeCoversStreamsWithoutHandles) {
  const Gate gate(device_);
  bool ran = false;
  {
    const Stream stream = device_.create_stream();
    gate.hold(stream);
    stream.run([&] { ran = true; });
  }
  EXPECT_ERROR(device_.synchronize(shortly()), ErrorCode::timeout, "not done");
  gate.open();
  device_.synchronize(soon());
  EXPECT_TRUE(ran);
}

TEST_P(StreamTest, ManyThreadsEnqueue) {
  const Stream streams[] = {device_.create_stream(), device_.create_stream(), device_.create_stream({.copy = true})};
  int counts[3] = {};  // each touched by one stream only: a sanitizer sees it if tasks of a stream overlap
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const Event event = device_.create_event();
      for (int i = 0; i < 300; ++i) {
        const std::size_t s = static_cast<std::size_t>(i) % 3;
        streams[s].run([&counts, s] { ++counts[s]; });
        streams[s].record(event);
        streams[(s + 1) % 3].wait(event);
      }
    });
  }
  for (auto& t : threads) t.join();
  device_.synchronize(soon());
  for (const int n : counts) EXPECT_EQ(n, 400);
}

TEST_P(StreamTest, WrongUseIsRefused) {
  EXPECT_ERROR(Stream().run([] {}), ErrorCode::invalid_usage, "create_stream");
  EXPECT_ERROR(Event().query(), ErrorCode::invalid_usage, "create_event");
  const Stream stream = device_.create_stream();
  EXPECT_ERROR(stream.run({}), ErrorCode::invalid_argument, "empty task");
  EXPECT_ERROR(stream.wait(Event()), ErrorCode::invalid_usage, "create_event");
  class ForeignEvent final : public detail::EventImpl {
    bool query() const override { return true; }
    void synchronize(Deadline) const override {}
  } foreign;
  EXPECT_ERROR(stream.impl().wait(foreign), ErrorCode::invalid_argument, "another device");
  EXPECT_ERROR(stream.impl().record(foreign), ErrorCode::invalid_argument, "another device");
}

TEST_P(StreamTest, HandlesNameTheirObjects) {
  EXPECT_FALSE(Stream().valid());
  EXPECT_FALSE(Event().valid());
  const Stream stream = device_.create_stream({.name = "compute"});
  EXPECT_TRUE(stream.valid());
  EXPECT_EQ(stream.name(), "compute");
  EXPECT_EQ(stream.device(), device_);
  EXPECT_FALSE(stream.device() == Device::host());
  EXPECT_EQ(device_.kind(), DeviceKind::host);
  EXPECT_THAT(device_.describe(), HasSubstr("box"));
}

TEST(HostDevice, ThreadsCarryTheStreamsName) {
  const auto name_of = [](const Stream& stream) {
    char name[16] = {};
    stream.run([&] { pthread_getname_np(pthread_self(), name, sizeof(name)); });
    stream.synchronize(soon());
    return std::string(name);
  };
  EXPECT_EQ(name_of(Device::host().create_stream({.name = "a rather long stream name"})), "a rather long s");
  const Device folded = Device::host({.queues = 2, .name = "box"});
  EXPECT_EQ(name_of(folded.create_stream()), "q0 box");
  EXPECT_EQ(name_of(folded.create_stream()), "q1 box");
  EXPECT_EQ(name_of(folded.create_stream({.copy = true})), "copy box");
}

TEST(HostDevice, NegativeQueueCountIsRefused) {
  EXPECT_ERROR(Device::host({.queues = -1}), ErrorCode::invalid_argument, "queues is -1");
}

TEST(HostDevice, MemoryIsAlignedAndItsOwn) {
  const Device device = Device::host();
  std::vector<Buffer> buffers;
  std::set<void*> addresses;
  for (const std::size_t bytes : {0U, 1U, 255U, 256U, 257U, 100000U, 0U}) {
    const Buffer b = device.allocate(bytes);
    EXPECT_EQ(b.bytes(), bytes);
    ASSERT_NE(b.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 256, 0U);
    std::memset(b.data(), 0xFF, bytes);
    addresses.insert(b.data());
    buffers.push_back(b);
  }
  EXPECT_EQ(addresses.size(), buffers.size());
}

TEST(HostDevice, StagingMemoryIsAlignedAndNotCounted) {
  const Device device = Device::host({.poison = true});
  std::set<void*> addresses;
  std::vector<std::shared_ptr<void>> blocks;
  for (const std::size_t bytes : {0U, 1U, 257U}) {
    blocks.push_back(device.impl().allocate_host(bytes));
    auto* const data = static_cast<unsigned char*>(blocks.back().get());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0U);
    for (std::size_t i = 0; i < bytes; ++i) EXPECT_EQ(data[i], 0xFF);
    addresses.insert(data);
  }
  EXPECT_EQ(addresses.size(), blocks.size());
  EXPECT_EQ(device.memory_use().peak, 0U);
  EXPECT_THROW(device.impl().allocate_host(SIZE_MAX / 2), Error);
}

TEST(HostDevice, MoreThanTheMachineHasIsOutOfMemory) {
  const Device device = Device::host({.name = "box"});
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX / 2, std::size_t{1} << 50}) {
    EXPECT_ERROR(device.allocate(bytes), ErrorCode::out_of_memory, "device 'box'");
  }
}

}  // namespace
}  // namespace tandem

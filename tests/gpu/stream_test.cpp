// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpu_support.hpp"

namespace tandem {
namespace {

using namespace testing_gpu;

class GpuStream : public GpuTest {};

TEST_F(GpuStream, CopiesAndTasksRunInOrder) {
  const Stream s = stream();
  const Buffer on_gpu = device().allocate(sizeof(std::uint64_t));
  const Pinned<std::uint64_t> a;
  const Pinned<std::uint64_t> b;
  a[0] = b[0] = 0;
  s.run([&] { a[0] = 42; });
  s.copy(on_gpu.data(), a.data(), a.bytes());
  s.copy(b.data(), on_gpu.data(), b.bytes());
  s.run([&] { a[0] = 0; });
  s.copy(nullptr, nullptr, 0);
  s.synchronize(soon());
  EXPECT_EQ(a[0], 0U);
  EXPECT_EQ(b[0], 42U);
  EXPECT_TRUE(s.idle());
}

TEST_F(GpuStream, CallsReturnBeforeTheWorkRan) {
  const Stream s = stream("compute");
  const Gate gate(device());
  gate.hold(s);
  std::atomic<bool> ran{false};
  s.run([&] { ran = true; });
  EXPECT_FALSE(s.idle());
  const auto before = Deadline::Clock::now();
  EXPECT_ERROR(s.synchronize(shortly()), ErrorCode::timeout, "stream 'compute' was not done");
  EXPECT_ERROR(device().synchronize(shortly()), ErrorCode::timeout, "device 0 was not done");
  EXPECT_LT(Deadline::Clock::now() - before, std::chrono::seconds(1));
  EXPECT_FALSE(ran);
  gate.open();
  s.synchronize(soon());
  EXPECT_TRUE(ran);
  device().synchronize(soon());
}

TEST_F(GpuStream, FirstExceptionIsKeptAndLaterWorkRuns) {
  const Stream s = stream("compute");
  const Event event = device().create_event();
  bool ran = false;
  s.run([] { throw std::runtime_error("first fault"); });
  s.run([] { throw Error(ErrorCode::transport, "second fault"); });
  s.run([&] { ran = true; });
  s.record(event);
  event.synchronize(soon());
  EXPECT_TRUE(ran);
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(s.synchronize(soon()), ErrorCode::device, "task on stream 'compute' failed: first fault");
    EXPECT_ERROR(device().synchronize(soon()), ErrorCode::device, "first fault");
  }
  EXPECT_NO_THROW(stream().synchronize(soon()));
}

TEST_F(GpuStream, WhatATaskHoldsIsGoneAfterSynchronize) {
  const Stream s = stream();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  s.run([held = std::move(held), memory = device().allocate(1000)] {});
  s.synchronize(soon());
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(device().memory_use().live, 0U);
}

TEST_F(GpuStream, ATaskMayDropTheLastHandles) {
  {
    const Device other = Device::cuda(0);
    const Stream s = other.create_stream();
    auto memory = std::make_shared<Buffer>(other.allocate(1000));
    auto event = std::make_shared<Event>(other.create_event());
    auto inner = std::make_shared<Stream>(other.create_stream());
    s.run([memory, event, inner] {
      *memory = Buffer();
      *event = Event();
      *inner = Stream();
    });
    memory.reset();
    s.synchronize(soon());
    EXPECT_EQ(other.memory_use().live, 0U);
    s.run([s, other] {});
  }
  device().synchronize(soon());
}

TEST_F(GpuStream, ATaskMayNotUseCuda) {
  const Stream s = stream();
  const Event event = device().create_event();
  int checked = 0;
  s.run([&] {
    EXPECT_ERROR(device().allocate(1), ErrorCode::invalid_usage, "by a task");
    EXPECT_ERROR(s.run([] {}), ErrorCode::invalid_usage, "by a task");
    EXPECT_ERROR(s.record(event), ErrorCode::invalid_usage, "by a task");
    EXPECT_ERROR(s.synchronize(soon()), ErrorCode::invalid_usage, "by a task");
    EXPECT_ERROR(device().synchronize(soon()), ErrorCode::invalid_usage, "by a task");
    ++checked;
  });
  s.synchronize(soon());
  EXPECT_EQ(checked, 1);
}

TEST_F(GpuStream, DeviceSynchronizeCoversStreamsWithoutHandles) {
  const Gate gate(device());
  std::atomic<bool> ran{false};
  {
    const Stream s = stream();
    gate.hold(s);
    s.run([&] { ran = true; });
  }
  EXPECT_ERROR(device().synchronize(shortly()), ErrorCode::timeout, "not done");
  gate.open();
  device().synchronize(soon());
  EXPECT_TRUE(ran);
}

TEST_F(GpuStream, OfTheCallerIsUsedAndLeftAlone) {
  cudaStream_t own = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), cudaSuccess);
  int ran = 0;
  {
    const Stream wrapped = Stream::from_native(device(), own, "torch");
    EXPECT_EQ(wrapped.native(), own);
    EXPECT_EQ(wrapped.name(), "torch");
    wrapped.run([&] { ++ran; });
    wrapped.synchronize(soon());
    const Gate gate(device());
    gate.hold(wrapped);
    EXPECT_EQ(cudaStreamQuery(own), cudaErrorNotReady);
    static_cast<void>(cudaGetLastError());
  }
  EXPECT_EQ(cudaStreamSynchronize(own), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(own), cudaSuccess);
  const Stream legacy = Stream::from_native(device(), nullptr);
  legacy.run([&] { ++ran; });
  legacy.synchronize(soon());
  EXPECT_EQ(legacy.native(), nullptr);
  EXPECT_EQ(ran, 2);
}

TEST_F(GpuStream, ACaptureIsNotSpoilt) {
  const Stream captured = stream("captured");
  const Stream other = stream();
  const Event event = device().create_event();
  other.record(event);
  other.synchronize(soon());
  const auto native = static_cast<cudaStream_t>(captured.native());
  ASSERT_EQ(cudaStreamBeginCapture(native, cudaStreamCaptureModeGlobal), cudaSuccess);
  const auto use = [&] {
    EXPECT_TRUE(event.query());
    EXPECT_TRUE(other.idle());
    event.synchronize(soon());
    EXPECT_ERROR(captured.synchronize(soon()), ErrorCode::invalid_usage, "'captured' cannot be synchronized");
  };
  use();
  std::thread(use).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(native, &graph), cudaSuccess);
  EXPECT_NE(graph, nullptr);
  if (graph != nullptr) cudaGraphDestroy(graph);
  static_cast<void>(cudaGetLastError());
}

TEST_F(GpuStream, PriorityIsCudas) {
  int lowest = 0;
  int highest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&lowest, &highest), cudaSuccess);
  const auto priority = [](const Stream& s) {
    int value = 1;
    EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(s.native()), &value), cudaSuccess);
    return value;
  };
  EXPECT_EQ(priority(stream()), lowest);
  EXPECT_EQ(priority(device().create_stream({.high_priority = true})), highest);
}

TEST_F(GpuStream, WrongUseIsRefused) {
  const Stream s = stream();
  const Device host = Device::host();
  EXPECT_ERROR(s.run({}), ErrorCode::invalid_argument, "empty task");
  EXPECT_ERROR(s.wait(host.create_event()), ErrorCode::invalid_argument, "of a host device");
  EXPECT_ERROR(s.record(host.create_event()), ErrorCode::invalid_argument, "another device");
  EXPECT_ERROR(s.impl().wait(host.impl().create_signal(), {}), ErrorCode::invalid_argument, "of a host device");
  EXPECT_ERROR(host.create_stream().wait(device().create_event()), ErrorCode::invalid_argument, "another device");
  if (Device::cuda_count() > 1) {
    const Device other = Device::cuda(1);
    EXPECT_ERROR(other.create_stream().record(device().create_event()), ErrorCode::invalid_argument, "another device");
    EXPECT_ERROR(Stream::from_native(other, s.native()), ErrorCode::invalid_argument, "is of device 0");
  }
}

class GpuEvent : public GpuTest {};

TEST_F(GpuEvent, NeverRecordedHoldsNothingUp) {
  const Event event = device().create_event();
  EXPECT_NE(event.native(), nullptr);
  EXPECT_TRUE(event.query());
  event.synchronize(Deadline::after(std::chrono::seconds(0)));
  const Stream s = stream();
  s.wait(event);
  s.synchronize(soon());
}

TEST_F(GpuEvent, StandsForTheWorkBeforeIt) {
  const Stream s = stream();
  const Gate gate(device());
  const Event event = device().create_event();
  gate.hold(s);
  s.record(event);
  EXPECT_FALSE(event.query());
  EXPECT_ERROR(event.synchronize(shortly()), ErrorCode::timeout, "an event stands for");
  gate.open();
  event.synchronize(soon());
  EXPECT_TRUE(event.query());
}

TEST_F(GpuEvent, OrdersStreams) {
  const Stream first = stream();
  const Stream second = stream();
  const Gate gate(device());
  const Event event = device().create_event();
  std::vector<int> seen;  // host functions never run side by side within an order
  gate.hold(first);
  first.run([&] { seen.push_back(1); });
  first.record(event);
  second.wait(event);
  second.run([&] { seen.push_back(2); });
  EXPECT_FALSE(second.idle());
  gate.open();
  second.synchronize(soon());
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
}

TEST_F(GpuEvent, ALaterRecordDoesNotMoveAWait) {
  const Stream first = stream();
  const Stream second = stream();
  const Stream waiter = stream();
  const Gate early(device());
  const Gate late(device());
  const Event event = device().create_event();
  const Event passed = device().create_event();
  early.hold(first);
  first.record(event);
  waiter.wait(event);
  waiter.record(passed);
  late.hold(second);
  second.record(event);
  early.open();
  passed.synchronize(soon());
  EXPECT_FALSE(event.query());
  late.open();
  event.synchronize(soon());
}

TEST_F(GpuEvent, ARecycledOneHasNoPast) {
  const Stream s = stream();
  const Gate gate(device());
  gate.hold(s);
  void* native = nullptr;
  {
    const Event event = device().create_event();
    s.record(event);
    native = event.native();
  }
  const Event again = device().create_event();
  EXPECT_EQ(again.native(), native);
  EXPECT_TRUE(again.query());
  again.synchronize(Deadline::after(std::chrono::seconds(0)));
  if (one_connection()) return;
  const Stream other = stream();
  other.wait(again);
  other.run([] {});
  other.synchronize(soon());
  EXPECT_FALSE(s.idle());
}

}  // namespace
}  // namespace tandem

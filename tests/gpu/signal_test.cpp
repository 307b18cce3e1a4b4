// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/signal.hpp"

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gpu_support.hpp"

namespace tandem {
namespace {

using namespace testing_gpu;
using detail::SignalImpl;
using detail::cuda::CudaSignal;
using detail::cuda::SignalWord;
using detail::cuda::SignalWords;

class GpuSignal : public GpuTest {
 protected:
  static SignalWord word(const std::shared_ptr<SignalImpl>& signal) {
    return dynamic_cast<const CudaSignal&>(*signal).word();
  }
  static void hold(const Stream& s, const std::shared_ptr<SignalImpl>& signal) { s.impl().wait(signal, {}); }
};

TEST_F(GpuSignal, ReleasesStreamsAndThreads) {
  const auto go = signal();
  const Stream streams[] = {stream(), stream(), stream()};
  std::atomic<int> ran{0};
  for (const Stream& s : streams) {
    hold(s, go);
    s.run([&] { ++ran; });
  }
  EXPECT_FALSE(go->is_set());
  EXPECT_FALSE(go->wait(shortly()));
  EXPECT_EQ(ran, 0);
  std::thread setter([&] {
    go->set();
    go->set();
  });
  EXPECT_TRUE(go->wait(soon()));
  setter.join();
  for (const Stream& s : streams) s.synchronize(soon());
  EXPECT_EQ(ran, 3);
  hold(streams[0], go);
  streams[0].synchronize(soon());
}

TEST_F(GpuSignal, WhatTheSetterWroteIsSeen) {
  const Stream s = stream();
  const Pinned<std::uint64_t> from;
  const Pinned<std::uint64_t> to;
  const Buffer on_gpu = device().allocate(sizeof(std::uint64_t));
  for (std::uint64_t i = 1; i <= 300; ++i) {
    const auto go = signal();
    from[0] = 0;
    hold(s, go);
    s.copy(on_gpu.data(), from.data(), from.bytes());
    s.copy(to.data(), on_gpu.data(), to.bytes());
    from[0] = i;
    go->set();
    s.synchronize(soon());
    ASSERT_EQ(to[0], i);
  }
}

TEST_F(GpuSignal, AMarkIsReachedWhenTheStreamGetsThere) {
  const auto go = signal();
  const Stream s = stream();
  for (int i = 0; i < 100; ++i) {  // words are used again
    const auto before = s.impl().leave_mark();
    s.synchronize(soon());
    EXPECT_TRUE(before->reached());
  }
  hold(s, go);
  const auto after = s.impl().leave_mark();
  EXPECT_FALSE(after->reached());
  EXPECT_EQ(s.impl().capture(), 0U);
  go->set();
  s.synchronize(soon());
  EXPECT_TRUE(after->reached());
}

// With one hardware queue everything enqueued after the waits stands behind them; a store by the CPU does not. Run by
// CMake once more with CUDA_DEVICE_MAX_CONNECTIONS=1.
TEST_F(GpuSignal, AStoreReleasesStuckStreams) {
  std::vector<Stream> streams;
  for (int i = 0; i < 12; ++i) streams.push_back(device().create_stream({.high_priority = i % 2 == 0}));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<SignalImpl>> signals;
    for (const Stream& s : streams) {
      signals.push_back(signal());
      hold(s, signals.back());
      s.run([] {});
    }
    EXPECT_ERROR(device().synchronize(Deadline::after(std::chrono::milliseconds(1))), ErrorCode::timeout, "not done");
    for (const auto& go : signals) go->set();
    device().synchronize(soon());
  }
}

TEST_F(GpuSignal, GoingUnsetReleases) {
  const Stream s = stream();
  hold(s, signal());
  s.synchronize(soon());
}

TEST_F(GpuSignal, AnOldWaitSurvivesTheWordsNextUser) {
  const Stream old_waiter = stream();
  const Stream new_waiter = stream();
  const Gate gate(device());
  gate.hold(old_waiter);
  const Event passed = device().create_event();
  SignalWord old_word;
  {
    const auto old_signal = signal();
    old_word = word(old_signal);
    hold(old_waiter, old_signal);  // the GPU does not come to this wait before the gate opens
    old_waiter.record(passed);
    old_signal->set();
  }
  const auto new_signal = signal();
  ASSERT_EQ(word(new_signal).value, old_word.value);
  EXPECT_EQ(word(new_signal).target, old_word.target + 1);
  hold(new_waiter, new_signal);
  gate.open();
  passed.synchronize(soon());
  EXPECT_ERROR(new_waiter.synchronize(shortly()), ErrorCode::timeout, "not done");
  EXPECT_FALSE(new_signal->is_set());
  new_signal->set();
  new_waiter.synchronize(soon());
}

TEST_F(GpuSignal, CountingPastTheEndOfAWordIsHarmless) {
  const Stream s = stream();
  {
    auto& words = SignalWords::instance();
    const auto context = detail::cuda::Context{0, nullptr};  // not needed where a word is free
    const SignalWord free_word = words.take(context);
    free_word.value->store(0xFFFFFFFDU);
    words.give(free_word);
  }
  for (const std::uint32_t target : {0xFFFFFFFEU, 0xFFFFFFFFU, 0U, 1U, 2U}) {
    const auto go = signal();
    ASSERT_EQ(word(go).target, target);
    hold(s, go);
    EXPECT_ERROR(s.synchronize(shortly()), ErrorCode::timeout, "not done");
    go->set();
    s.synchronize(soon());
  }
}

TEST_F(GpuSignal, MoreThanOneAllocationHolds) {
  const Stream s = stream();
  std::vector<std::shared_ptr<SignalImpl>> signals;
  for (int i = 0; i < 3000; ++i) signals.push_back(signal());
  hold(s, signals.front());
  hold(s, signals.back());
  for (const auto& go : signals) {
    EXPECT_FALSE(go->is_set());
    go->set();
  }
  s.synchronize(soon());
}

TEST_F(GpuSignal, TellsHowLongAStreamWaited) {
  const Stream s = stream();
  const auto go = signal();
  std::int64_t waited = -1;
  std::atomic<bool> reached{false};
  s.run([&] { reached = true; });
  s.impl().wait(go, [&](std::int64_t begin, std::int64_t end) { waited = end - begin; });
  ASSERT_TRUE(eventually([&] { return reached.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  go->set();
  s.synchronize(soon());
  EXPECT_GT(waited, 10'000'000);
  s.impl().wait(go, [&](std::int64_t begin, std::int64_t end) { waited = end - begin; });
  s.synchronize(soon());
  EXPECT_EQ(waited, 0);
  s.impl().wait(go, [](std::int64_t, std::int64_t) { throw std::runtime_error("no room"); });
  EXPECT_ERROR(s.synchronize(soon()), ErrorCode::device, "no room");
}

}  // namespace
}  // namespace tandem

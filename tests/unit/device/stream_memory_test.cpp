// SPDX-License-Identifier: Apache-2.0
#include "device/stream_memory.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tandem/error.hpp"

namespace tandem {
namespace {

using detail::StreamMemory;

/// Where memory comes from, as a device that counts.
struct Source {
  std::size_t limit = SIZE_MAX;
  std::size_t used = 0;
  int given = 0, freed = 0;

  StreamMemory::Allocate allocate() {
    return [this](std::size_t bytes) {
      if (bytes > limit - used) throw Error(ErrorCode::out_of_memory, "full");
      used += bytes;
      ++given;
      return Buffer(std::shared_ptr<void>(::operator new(bytes),
                                          [this, bytes](void* p) {
                                            ::operator delete(p);
                                            used -= bytes;
                                            ++freed;
                                          }),
                    bytes);
    };
  }
};

TEST(StreamMemory, GivesOutAgainWhatTheSameStreamsCallerLetGo) {
  Source source;
  StreamMemory memory(source.allocate());
  for (int step = 0; step < 5; ++step) {
    const Buffer a = memory.take(1, 1000), b = memory.take(1, 50);
    EXPECT_NE(a.data(), b.data());
    EXPECT_GE(a.bytes(), 1000U);
  }
  EXPECT_EQ(source.given, 2);
  EXPECT_EQ(source.freed, 0);
  EXPECT_EQ(memory.idle_bytes(), 1050U);
}

TEST(StreamMemory, DoesNotGiveOutWhatIsHeldOrAnotherStreams) {
  Source source;
  StreamMemory memory(source.allocate());
  const Buffer held = memory.take(1, 100);
  const Buffer copy = held;
  EXPECT_NE(memory.take(1, 100).data(), held.data());
  const void* first = nullptr;
  {
    const Buffer gone = memory.take(2, 100);
    first = gone.data();
  }
  const Buffer of_other = memory.take(3, 100);
  EXPECT_NE(of_other.data(), first);
  EXPECT_EQ(memory.take(2, 100).data(), first);
}

TEST(StreamMemory, TakesTheBestFitAndNothingMuchTooLarge) {
  Source source;
  StreamMemory memory(source.allocate());
  const void* fitting = nullptr;
  {
    const Buffer large = memory.take(1, 1000), good = memory.take(1, 110), close = memory.take(1, 120);
    fitting = good.data();
  }
  const Buffer a = memory.take(1, 100);
  EXPECT_EQ(a.data(), fitting);
  EXPECT_EQ(a.bytes(), 110U);
  const Buffer b = memory.take(1, 500);  // not the 1000
  EXPECT_EQ(source.given, 4);
  EXPECT_EQ(b.bytes(), 500U);
}

TEST(StreamMemory, KeepsNoMoreIdleThanWasInUseAtOnce) {
  Source source;
  StreamMemory memory(source.allocate());
  // Every step another size: nothing fits again.
  for (std::size_t step = 0; step < 20; ++step) const Buffer one = memory.take(1, std::size_t{1000} << (step % 5));
  EXPECT_LE(memory.idle_bytes(), 16000U);
  EXPECT_GT(source.freed, 0);
}

TEST(StreamMemory, GivesIdleMemoryBackRatherThanFail) {
  Source source;
  source.limit = 1500;
  StreamMemory memory(source.allocate());
  { const Buffer gone = memory.take(1, 1000); }
  EXPECT_EQ(memory.idle_bytes(), 1000U);
  const Buffer other = memory.take(2, 1200);
  EXPECT_EQ(memory.idle_bytes(), 0U);
  EXPECT_THROW(memory.take(2, 1200), Error);
}

TEST(StreamMemory, MemoryOfACallThatFailedIsFreed) {
  Source source;
  StreamMemory memory(source.allocate());
  try {
    const Buffer one = memory.take(1, 100);
    throw std::runtime_error("in the middle of a call");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(source.freed, 1);
  EXPECT_EQ(memory.idle_bytes(), 0U);
  { const Buffer next = memory.take(1, 100); }
  EXPECT_EQ(memory.idle_bytes(), 100U);
}

TEST(StreamMemory, MemoryMayOutliveIt) {
  Source source;
  std::optional<StreamMemory> memory(source.allocate());
  Buffer kept = memory->take(1, 100);
  { const Buffer gone = memory->take(1, 300); }
  memory.reset();
  EXPECT_EQ(source.freed, 1);
  kept = {};
  EXPECT_EQ(source.freed, 2);
  EXPECT_EQ(source.used, 0U);
}

TEST(StreamMemory, AnyThreadMayLetGo) {
  Source source;
  StreamMemory memory(source.allocate());
  for (int step = 0; step < 200; ++step) {
    Buffer a = memory.take(1, 64);
    Buffer b = memory.take(1, 64);
    std::thread other([gone = std::move(a)]() mutable { gone = {}; });
    b = {};
    const Buffer c = memory.take(1, 64);
    other.join();
  }
  EXPECT_LE(source.given, 3);
}

}  // namespace
}  // namespace tandem

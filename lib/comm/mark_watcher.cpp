// SPDX-License-Identifier: Apache-2.0
#include "comm/mark_watcher.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/thread.hpp"

namespace tandem::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// For so long after something happened it asks without a pause: what follows is often close behind.
constexpr microseconds busy{20};
constexpr microseconds shortest{5}, longest{100};

// A mark is seen late by a fiftieth of the time it took, and by `longest` at most: short work is not held up, and long
// work costs a few hundredths of a core.
Clock::duration pause_after(Clock::duration idle) { return std::clamp<Clock::duration>(idle / 50, shortest, longest); }

}  // namespace

MarkWatcher::MarkWatcher() : thread_(start_thread([this] { run(); })) {}

MarkWatcher::~MarkWatcher() { stop(); }

void MarkWatcher::watch(std::uint32_t queue, std::shared_ptr<const MarkImpl> mark, Action act) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    queues_[queue].push_back({std::move(mark), std::move(act)});
  }
  changed_.notify_one();
}

void MarkWatcher::stop() noexcept {
  std::map<std::uint32_t, std::deque<Entry>> forgotten;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    forgotten.swap(queues_);
  }
  changed_.notify_one();
  const std::lock_guard lock(joining_);
  if (thread_.joinable()) thread_.join();
}

bool MarkWatcher::take_reached(std::deque<Entry>& out) {
  for (auto& [number, queue] : queues_) {
    while (!queue.empty() && queue.front().mark->reached()) {
      out.push_back(std::move(queue.front()));
      queue.pop_front();
    }
  }
  std::erase_if(queues_, [](const auto& queue) { return queue.second.empty(); });
  return !out.empty();
}

void MarkWatcher::run() {
  set_thread_name("tandem-staging");
  // Pauses are shorter than the 50 us by which the system lets a thread oversleep.
  static_cast<void>(::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL));
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!stopped_) {
    if (queues_.empty()) {
      changed_.wait(lock, [this] { return stopped_ || !queues_.empty(); });
      last = Clock::now();
      continue;
    }
    std::deque<Entry> reached;
    if (take_reached(reached)) {
      lock.unlock();
      for (const Entry& entry : reached) entry.act();
      reached.clear();
      lock.lock();
      last = Clock::now();
      continue;
    }
    const auto idle = Clock::now() - last;
    lock.unlock();
    if (idle < busy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause_after(idle));
    }
    lock.lock();
  }
}

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include "device/stream_memory.hpp"

#include <algorithm>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tandem/error.hpp"

namespace tandem::detail {

struct StreamMemory::State {
  struct PerStream {
    std::list<Buffer> idle;  ///< the one that was let go of last in front
    std::size_t idle_bytes = 0;
    std::size_t used = 0;
    std::size_t most_used = 0;
  };

  Allocate allocate;
  std::mutex mutex;
  std::map<std::uint64_t, PerStream> streams;

  /// The smallest that is large enough and not much too large; empty if there is none.
  Buffer reuse(std::uint64_t stream, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    PerStream& mine = streams[stream];
    const std::size_t most = bytes + bytes / 4;
    auto best = mine.idle.end();
    for (auto it = mine.idle.begin(); it != mine.idle.end(); ++it) {
      if (it->bytes() < bytes || it->bytes() > most) continue;
      if (best == mine.idle.end() || it->bytes() < best->bytes()) best = it;
    }
    if (best == mine.idle.end()) return {};
    Buffer found = *best;
    mine.idle.erase(best);
    mine.idle_bytes -= found.bytes();
    return found;
  }

  void lend(std::uint64_t stream, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    PerStream& mine = streams[stream];
    mine.used += bytes;
    mine.most_used = std::max(mine.most_used, mine.used);
  }

  /// Takes it back, unless an exception unwinds: then work may be under way that the stream knows nothing of. What is
  /// too much is freed after the lock is given up.
  void take_back(std::uint64_t stream, Buffer buffer, bool for_good) {
    std::vector<Buffer> too_much;
    const std::lock_guard lock(mutex);
    PerStream& mine = streams[stream];
    mine.used -= buffer.bytes();
    if (for_good) return;
    mine.idle_bytes += buffer.bytes();
    mine.idle.push_front(std::move(buffer));
    while (mine.idle_bytes > mine.most_used) {
      mine.idle_bytes -= mine.idle.back().bytes();
      too_much.push_back(std::move(mine.idle.back()));
      mine.idle.pop_back();
    }
  }

  void drop_idle() {
    std::vector<Buffer> dropped;
    const std::lock_guard lock(mutex);
    for (auto& [id, mine] : streams) {
      for (Buffer& buffer : mine.idle) dropped.push_back(std::move(buffer));
      mine.idle.clear();
      mine.idle_bytes = 0;
    }
  }
};

StreamMemory::StreamMemory(Allocate allocate) : state_(std::make_shared<State>()) {
  state_->allocate = std::move(allocate);
}

Buffer StreamMemory::take(std::uint64_t stream, std::size_t bytes) {
  Buffer memory = state_->reuse(stream, bytes);
  if (memory.data() == nullptr) {
    try {
      memory = state_->allocate(bytes);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory) throw;
      state_->drop_idle();
      memory = state_->allocate(bytes);
    }
  }
  void* const data = memory.data();
  const int unwinding = std::uncaught_exceptions();
  std::shared_ptr<void> lent(data, [state = std::weak_ptr(state_), stream, memory, unwinding](void*) mutable {
    const std::shared_ptr<State> home = state.lock();
    if (home) home->take_back(stream, std::move(memory), std::uncaught_exceptions() > unwinding);
  });
  state_->lend(stream, memory.bytes());
  return Buffer(std::move(lent), memory.bytes());
}

std::uint64_t StreamMemory::idle_bytes() const {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t total = 0;
  for (const auto& [id, mine] : state_->streams) total += mine.idle_bytes;
  return total;
}

}  // namespace tandem::detail

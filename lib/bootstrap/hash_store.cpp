// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "bootstrap/key_table.hpp"
#include "bootstrap/notice_board.hpp"
#include "bootstrap/roster.hpp"

namespace tandem {

using detail::KeyTable;
using detail::NoticeBoard;
using detail::Reply;
using detail::Request;
using detail::Roster;
using detail::View;

struct HashStore::State {
  explicit State(int size) : roster(size), boards(static_cast<std::size_t>(size)) {
    for (auto& board : boards) board = std::make_unique<NoticeBoard>();
    thread = detail::start_thread([this] { deliver_notices(); });
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    notices_pending.notify_one();
    thread.join();
  }

  Reply request(const Request& request, int rank, Deadline deadline, const View& view) {
    if (std::this_thread::get_id() == thread.get_id()) {
      throw Error(ErrorCode::invalid_usage, "a store's listener may not wait for the store", rank);
    }
    std::unique_lock lock(mutex);
    view.check();
    Reply reply = keys.apply(request);
    if (request.op == Request::Op::set || request.op == Request::Op::add) changed.notify_all();
    if (request.op != Request::Op::get || reply.found) return reply;
    const bool found = changed.wait_until(lock, deadline.time(), [&] {
      if (!view.open()) return true;
      reply = keys.apply(request);
      return reply.found;
    });
    if (reply.found) return reply;
    view.check();
    if (found) throw Error(ErrorCode::internal, "a store wait ended without a cause", rank);
    throw Error(ErrorCode::timeout, fmt::format("rank {}: key '{}' was not set in time", rank, request.key), rank);
  }

  void wake() noexcept {
    // Taken so that a waiter is either before its look at the view or already asleep.
    std::lock_guard lock(mutex);
    changed.notify_all();
  }

  // To all boards but that of the rank it came from.
  void tell_others(int origin, const Store::Notice& notice) {
    {
      std::lock_guard lock(mutex);
      for (int r = 0; r < roster.size(); ++r) {
        if (r != origin) boards[static_cast<std::size_t>(r)]->add(notice);
      }
      pending = true;
    }
    notices_pending.notify_one();
  }

  void request_delivery() {
    {
      std::lock_guard lock(mutex);
      pending = true;
    }
    notices_pending.notify_one();
  }

  void deliver_notices() {
    detail::set_thread_name("tandem-store");
    std::unique_lock lock(mutex);
    while (true) {
      notices_pending.wait(lock, [this] { return pending || stopping; });
      if (stopping) return;
      pending = false;
      lock.unlock();
      for (auto& board : boards) board->deliver();
      lock.lock();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable notices_pending;
  KeyTable keys;
  Roster roster;
  std::vector<std::unique_ptr<NoticeBoard>> boards;  // by rank
  bool pending = false;
  bool stopping = false;
  std::thread thread;
};

namespace {

class AttachedStore final : public detail::RequestStore {
 public:
  AttachedStore(std::shared_ptr<HashStore::State> state, int rank)
      : RequestStore(std::make_shared<View>()), state_(std::move(state)), rank_(rank) {}
  ~AttachedStore() override { lose("its store was destroyed without leave()"); }

  Reply request(Request request, Deadline deadline, const View& view) override {
    return state_->request(request, rank_, deadline, view);
  }
  void wake() noexcept override { state_->wake(); }

  std::shared_ptr<void> listen(Listener listener) override {
    auto handle = state_->boards[static_cast<std::size_t>(rank_)]->listen(std::move(listener));
    state_->request_delivery();
    return handle;
  }

  void announce(const Notice& notice) noexcept override {
    try {
      state_->tell_others(rank_, notice);
    } catch (const std::exception& e) {
      log::error("rank {}: cannot announce to the other ranks: {}", rank_, e.what());
    }
  }

  void leave(Deadline) override {
    if (view()->closed()) view()->check();
    view()->leave();
    wake();
    bool left = false;
    {
      std::lock_guard lock(state_->mutex);
      left = state_->roster.leave(rank_);
    }
    if (left) announce({Notice::Kind::left, rank_, "it said good-bye"});
  }

  void close() noexcept override {
    view()->close();
    wake();
    lose("its store was closed without leave()");
  }

 private:
  void lose(const char* reason) noexcept {
    bool lost = false;
    {
      std::lock_guard lock(state_->mutex);
      lost = state_->roster.lose(rank_);
    }
    if (lost) announce({Notice::Kind::peer_lost, rank_, reason});
  }

  const std::shared_ptr<HashStore::State> state_;
  const int rank_;
};

}  // namespace

std::shared_ptr<HashStore> HashStore::create(int size) {
  if (size < 1) throw Error(ErrorCode::invalid_argument, fmt::format("a store for {} ranks", size));
  return std::make_shared<HashStore>(std::make_shared<State>(size));
}

std::shared_ptr<Store> HashStore::attach(int rank) {
  {
    std::lock_guard lock(state_->mutex);
    const bool in_range = rank >= 0 && rank < state_->roster.size();
    if (const std::optional<std::string> refusal = state_->roster.join(rank)) {
      throw Error(in_range ? ErrorCode::invalid_usage : ErrorCode::invalid_argument, *refusal, rank);
    }
  }
  return std::make_shared<AttachedStore>(state_, rank);
}

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/notice_board.hpp"

#include <exception>

#include "base/log.hpp"

namespace tandem::detail {

class NoticeBoard::Subscription {
 public:
  explicit Subscription(Store::Listener listener) : listener_(std::move(listener)) {}

  void deliver(NoticeBoard& board) {
    // Held during the call, so that end() returns only when none is running.
    std::lock_guard lock(running_);
    Store::Notice notice;
    while (listener_ && board.next(heard_, &notice)) {
      ++heard_;
      try {
        listener_(notice);
      } catch (const std::exception& e) {
        log::error("a listener of the store threw: {}", e.what());
      }
    }
  }

  void end() {
    std::lock_guard lock(running_);
    listener_ = nullptr;
  }

 private:
  std::mutex running_;
  Store::Listener listener_;
  std::size_t heard_ = 0;
};

void NoticeBoard::add(Store::Notice notice) {
  std::lock_guard lock(mutex_);
  notices_.push_back(std::move(notice));
}

std::shared_ptr<void> NoticeBoard::listen(Store::Listener listener) {
  struct Handle {
    std::shared_ptr<Subscription> subscription;
    explicit Handle(std::shared_ptr<Subscription> s) : subscription(std::move(s)) {}
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { subscription->end(); }
  };
  auto handle = std::make_shared<Handle>(std::make_shared<Subscription>(std::move(listener)));
  std::lock_guard lock(mutex_);
  std::erase_if(subscriptions_, [](const auto& s) { return s.expired(); });
  subscriptions_.push_back(handle->subscription);
  return handle;
}

void NoticeBoard::deliver() {
  for (const auto& subscription : current()) subscription->deliver(*this);
}

std::vector<std::shared_ptr<NoticeBoard::Subscription>> NoticeBoard::current() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Subscription>> strong;
  for (const auto& weak : subscriptions_) {
    if (auto subscription = weak.lock()) strong.push_back(std::move(subscription));
  }
  return strong;
}

bool NoticeBoard::next(std::size_t index, Store::Notice* notice) {
  std::lock_guard lock(mutex_);
  if (index >= notices_.size()) return false;
  *notice = notices_[index];
  return true;
}

}  // namespace tandem::detail

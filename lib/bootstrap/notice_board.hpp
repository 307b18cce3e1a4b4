// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tandem/store.hpp"

namespace tandem::detail {

/// The notices that one rank has received, and who listens. Each listener hears all of them, in order, once.
class NoticeBoard {
 public:
  /// Any thread. The caller then sees to it that deliver() runs.
  void add(Store::Notice notice);
  std::shared_ptr<void> listen(Store::Listener listener);
  /// Calls the listeners for what they have not heard. One thread only.
  void deliver();

 private:
  class Subscription;

  std::vector<std::shared_ptr<Subscription>> current();
  bool next(std::size_t index, Store::Notice* notice);

  std::mutex mutex_;
  std::vector<Store::Notice> notices_;
  std::vector<std::weak_ptr<Subscription>> subscriptions_;
};

}  // namespace tandem::detail

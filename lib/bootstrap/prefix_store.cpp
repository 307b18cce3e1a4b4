// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "bootstrap/request_store.hpp"

namespace tandem {
namespace {

using detail::Reply;
using detail::Request;
using detail::RequestStore;
using detail::View;

/// Makes a caller's own Store look like ours. Such a store cannot be told to give up a wait, so a get is cut into short
/// waits, between which the view is looked at.
class ForeignStore final : public RequestStore {
 public:
  explicit ForeignStore(std::shared_ptr<Store> store)
      : RequestStore(std::make_shared<View>()), store_(std::move(store)) {}

  Reply request(Request request, Deadline deadline, const View& view) override {
    view.check();
    switch (request.op) {
      case Request::Op::set:
        store_->set(request.key, request.value, deadline);
        return {};
      case Request::Op::get:
        return {true, wait_for(request.key, deadline, view), 0};
      case Request::Op::try_get: {
        std::optional<std::string> value = store_->try_get(request.key, deadline);
        return {value.has_value(), value.value_or(""), 0};
      }
      case Request::Op::add:
        return {true, {}, store_->add(request.key, request.amount, deadline)};
      case Request::Op::erase:
        store_->erase(request.key, deadline);
        return {};
    }
    throw Error(ErrorCode::internal, "an unknown store request");
  }
  void wake() noexcept override {}
  std::shared_ptr<void> listen(Listener listener) override { return store_->listen(std::move(listener)); }
  void announce(const Notice& notice) noexcept override { store_->announce(notice); }
  void leave(Deadline deadline) override { store_->leave(deadline); }
  void close() noexcept override { store_->close(); }

 private:
  std::string wait_for(const std::string& key, Deadline deadline, const View& view) {
    while (true) {
      const auto slice = Deadline::Clock::now() + std::chrono::milliseconds(20);
      const bool last = deadline.time() <= slice;
      try {
        return store_->get(key, last ? deadline : Deadline::at(slice));
      } catch (const Error& e) {
        if (e.code() != ErrorCode::timeout || last) throw;
      }
      view.check();
    }
  }

  const std::shared_ptr<Store> store_;
};

class PrefixStore final : public RequestStore {
 public:
  PrefixStore(std::shared_ptr<RequestStore> base, std::string prefix)
      : RequestStore(std::make_shared<View>(base->view())), base_(std::move(base)), prefix_(std::move(prefix)) {}

  Reply request(Request request, Deadline deadline, const View& view) override {
    request.key.insert(0, prefix_);
    return base_->request(std::move(request), deadline, view);
  }
  void wake() noexcept override { base_->wake(); }
  std::shared_ptr<void> listen(Listener listener) override { return base_->listen(std::move(listener)); }
  void announce(const Notice& notice) noexcept override { base_->announce(notice); }
  void leave(Deadline) override {
    if (view()->closed()) view()->check();
    view()->leave();
    wake();
  }
  void close() noexcept override {
    view()->close();
    wake();
  }

 private:
  const std::shared_ptr<RequestStore> base_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> prefix_store(std::shared_ptr<Store> store, std::string prefix) {
  if (!store) throw Error(ErrorCode::invalid_argument, "prefix_store: the store is null");
  auto base = std::dynamic_pointer_cast<RequestStore>(store);
  if (!base) base = std::make_shared<ForeignStore>(std::move(store));
  return std::make_shared<PrefixStore>(std::move(base), std::move(prefix));
}

}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "tandem/store.hpp"

namespace tandem::detail {

/// Whether calls through one handle of a store may still be made. A view of a view is closed with what it stands on.
class View {
 public:
  explicit View(std::shared_ptr<const View> parent = nullptr) : parent_(std::move(parent)) {}

  void close() noexcept { state_ = State::closed; }
  void leave() noexcept {
    State open = State::open;
    state_.compare_exchange_strong(open, State::left);
  }
  bool open() const noexcept { return state_ == State::open && (!parent_ || parent_->open()); }
  bool closed() const noexcept { return state_ == State::closed || (parent_ && parent_->closed()); }
  /// Throws aborted after close(), invalid_usage after leave().
  void check() const;

 private:
  enum class State { open, left, closed };

  std::atomic<State> state_{State::open};
  const std::shared_ptr<const View> parent_;
};

struct Request {
  enum class Op { set, get, try_get, add, erase };
  Op op = Op::get;
  std::string key;
  std::string value;
  std::int64_t amount = 0;
};

const char* to_string(Request::Op op) noexcept;

struct Reply {
  bool found = true;
  std::string value;
  std::int64_t number = 0;
};

/// The stores of the library: every call becomes one request, made on behalf of a view.
class RequestStore : public Store {
 public:
  RequestStore(std::shared_ptr<View> view) : view_(std::move(view)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) final;
  std::string get(std::string_view key, Deadline deadline) final;
  std::optional<std::string> try_get(std::string_view key, Deadline deadline) final;
  std::int64_t add(std::string_view key, std::int64_t amount, Deadline deadline) final;
  void erase(std::string_view key, Deadline deadline) final;

  /// Blocks until the answer is here, the deadline passes, or `view` is no longer open.
  virtual Reply request(Request request, Deadline deadline, const View& view) = 0;
  /// Makes blocked requests look at their views again.
  virtual void wake() noexcept = 0;

  const std::shared_ptr<View>& view() const noexcept { return view_; }

 private:
  const std::shared_ptr<View> view_;
};

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::in_ms;
using testing::soon;

/// A store that is none of the library's own, as a caller may bring one.
class ForeignStore final : public Store {
 public:
  explicit ForeignStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}
  void set(std::string_view k, std::string_view v, Deadline d) override { inner_->set(k, v, d); }
  std::string get(std::string_view k, Deadline d) override { return inner_->get(k, d); }
  std::optional<std::string> try_get(std::string_view k, Deadline d) override { return inner_->try_get(k, d); }
  std::int64_t add(std::string_view k, std::int64_t n, Deadline d) override { return inner_->add(k, n, d); }
  void erase(std::string_view k, Deadline d) override { inner_->erase(k, d); }
  std::shared_ptr<void> listen(Listener l) override { return inner_->listen(std::move(l)); }
  void announce(const Notice& n) noexcept override { inner_->announce(n); }
  void leave(Deadline d) override { inner_->leave(d); }
  void close() noexcept override { inner_->close(); }

 private:
  std::shared_ptr<Store> inner_;
};

class ForeignWorld final : public testing::World {
 public:
  explicit ForeignWorld(int size) : inner_(size) {}
  std::shared_ptr<Store> join(int rank) override { return std::make_shared<ForeignStore>(inner_.join(rank)); }

 private:
  testing::HashWorld inner_;
};

std::vector<testing::StoreKind> kinds_and_foreign() {
  std::vector<testing::StoreKind> kinds = testing::store_kinds();
  kinds.push_back({"Foreign", [](int size) { return std::make_unique<ForeignWorld>(size); }});
  return kinds;
}

class PrefixStores : public testing::BothStores {};
INSTANTIATE_TEST_SUITE_P(Kinds, PrefixStores, ::testing::ValuesIn(kinds_and_foreign()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PrefixStores, KeysAreApart) {
  const auto w = world(1);
  const auto base = w->join(0);
  const auto a = prefix_store(base, "a/"), b = prefix_store(base, "b/");
  a->set("key", "of a", soon());
  EXPECT_EQ(b->try_get("key", soon()), std::nullopt);
  EXPECT_EQ(base->get("a/key", soon()), "of a");
  EXPECT_EQ(b->add("n", 2, soon()), 2);
  EXPECT_EQ(base->get("b/n", soon()), "2");
  a->erase("key", soon());
  EXPECT_EQ(base->try_get("a/key", soon()), std::nullopt);
  const auto nested = prefix_store(b, "c/");
  nested->set("key", "deep", soon());
  EXPECT_EQ(base->get("b/c/key", soon()), "deep");
}

TEST_P(PrefixStores, ATimeoutNamesTheWholeKey) {
  const auto w = world(1);
  const auto view = prefix_store(w->join(0), "group/");
  EXPECT_THAT(error_of(ErrorCode::timeout, [&] { view->get("missing", in_ms(40)); }).what(),
              HasSubstr("group/missing"));
}

TEST_P(PrefixStores, ClosingAViewWakesOnlyItsOwnCalls) {
  const auto w = world(1);
  const auto base = w->join(0);
  const auto a = prefix_store(base, "a/"), b = prefix_store(base, "b/");
  const auto nested = prefix_store(a, "nested/");
  auto in_a = std::async(std::launch::async, [&] { return a->get("k", soon()); });
  auto in_b = std::async(std::launch::async, [&] { return b->get("k", soon()); });
  auto in_nested = std::async(std::launch::async, [&] { return nested->get("k", soon()); });
  auto in_base = std::async(std::launch::async, [&] { return base->get("k", soon()); });
  EXPECT_EQ(in_a.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  a->close();
  error_of(ErrorCode::aborted, [&] { in_a.get(); });
  error_of(ErrorCode::aborted, [&] { in_nested.get(); });
  error_of(ErrorCode::aborted, [&] { a->set("k", "v", soon()); });
  error_of(ErrorCode::aborted, [&] { nested->set("k", "v", soon()); });
  b->set("k", "b", soon());
  base->set("k", "base", soon());
  EXPECT_EQ(in_b.get(), "b");
  EXPECT_EQ(in_base.get(), "base");
}

TEST_P(PrefixStores, ClosingTheBaseClosesTheView) {
  const auto w = world(1);
  const auto base = w->join(0);
  const auto view = prefix_store(base, "a/");
  auto waiting = std::async(std::launch::async, [&] { return view->get("k", soon()); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  base->close();
  error_of(ErrorCode::aborted, [&] { waiting.get(); });
}

TEST_P(PrefixStores, LeavingAViewLeavesTheJobNot) {
  const auto w = world(2);
  const auto base = w->join(0), other = w->join(1);
  testing::NoticeLog log;
  const auto handle = other->listen(log.listener());
  const auto view = prefix_store(base, "a/");
  view->leave(soon());
  view->leave(soon());
  error_of(ErrorCode::invalid_usage, [&] { view->set("k", "v", soon()); });
  base->set("k", "v", soon());
  EXPECT_EQ(other->get("k", soon()), "v");
  EXPECT_TRUE(log.all().empty());
}

TEST_P(PrefixStores, NoticesPassThrough) {
  const auto w = world(2);
  const auto a = prefix_store(w->join(0), "a/"), b = prefix_store(w->join(1), "b/");
  testing::NoticeLog log;
  const auto handle = a->listen(log.listener());
  b->announce({Store::Notice::Kind::aborted, 1, "why"});
  EXPECT_EQ(log.wait_for(Store::Notice::Kind::aborted, 1).reason, "why");
}

TEST(PrefixStore, ANullStoreIsRefused) {
  error_of(ErrorCode::invalid_argument, [] { prefix_store(nullptr, "a/"); });
}

}  // namespace
}  // namespace tandem

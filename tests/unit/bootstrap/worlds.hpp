// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "tandem/store.hpp"

namespace tandem::testing {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
inline Deadline in_ms(int ms) { return Deadline::after(std::chrono::milliseconds(ms)); }

/// Where the ranks of a test meet.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<Store> join(int rank) = 0;
};

class HashWorld final : public World {
 public:
  explicit HashWorld(int size) : store_(HashStore::create(size)) {}
  std::shared_ptr<Store> join(int rank) override { return store_->attach(rank); }

 private:
  std::shared_ptr<HashStore> store_;
};

class TcpWorld final : public World {
 public:
  explicit TcpWorld(int size, std::string address = "127.0.0.1",
                    std::chrono::milliseconds heartbeat_timeout = std::chrono::milliseconds(5000)) {
    StoreServerOptions server;
    server.address = address;
    server.size = size;
    server.token = random_job_token();
    server.heartbeat_timeout = heartbeat_timeout;
    server_ = StoreServer::start(server);
    const std::string host = address.find(':') == std::string::npos ? address : "[" + address + "]";
    options_.endpoint = host + ":" + std::to_string(server_->port());
    options_.token = server.token;
    options_.size = size;
    options_.heartbeat_timeout = heartbeat_timeout;
  }
  std::shared_ptr<Store> join(int rank) override { return connect_store(options_of(rank), soon()); }

  TcpStoreOptions options_of(int rank) const {
    TcpStoreOptions options = options_;
    options.rank = rank;
    return options;
  }
  StoreServer& server() { return *server_; }
  std::shared_ptr<StoreServer> shared_server() { return server_; }

 private:
  std::shared_ptr<StoreServer> server_;
  TcpStoreOptions options_;
};

struct StoreKind {
  const char* name;
  std::function<std::unique_ptr<World>(int size)> make;
};
inline void PrintTo(const StoreKind& kind, std::ostream* out) { *out << kind.name; }

/// Suites over both kinds of store.
class BothStores : public ::testing::TestWithParam<StoreKind> {
 protected:
  std::unique_ptr<World> world(int size) { return GetParam().make(size); }
};

inline const std::vector<StoreKind>& store_kinds() {
  static const std::vector<StoreKind> kinds{
      {"Hash", [](int size) { return std::make_unique<HashWorld>(size); }},
      {"Tcp", [](int size) { return std::make_unique<TcpWorld>(size); }},
  };
  return kinds;
}

/// Collects notices and lets a test wait for them.
class NoticeLog {
 public:
  Store::Listener listener() {
    return [this](const Store::Notice& notice) {
      {
        std::lock_guard lock(mutex_);
        notices_.push_back(notice);
      }
      changed_.notify_all();
    };
  }
  /// The first notice of that kind about that rank. Fails the test if it does not come.
  Store::Notice wait_for(Store::Notice::Kind kind, int rank) {
    std::unique_lock lock(mutex_);
    const Store::Notice* found = nullptr;
    const bool came = changed_.wait_until(lock, soon().time(), [&] {
      for (const Store::Notice& n : notices_) {
        if (n.kind == kind && n.rank == rank) found = &n;
      }
      return found != nullptr;
    });
    EXPECT_TRUE(came) << "no notice of kind " << static_cast<int>(kind) << " about rank " << rank;
    return came ? *found : Store::Notice{};
  }
  std::vector<Store::Notice> all() {
    std::lock_guard lock(mutex_);
    return notices_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Store::Notice> notices_;
};

/// Runs `call`, which must throw tandem::Error with this code; returns the error for a look at its text and rank.
/// The error must come well before soon(): a wake-up that is lost would otherwise be made good by the deadline.
template <class F>
Error error_of(ErrorCode code, F&& call) {
  const auto begin = Deadline::Clock::now();
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(to_string(e.code()), std::string(to_string(code))) << e.what();
    EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(12)) << e.what();
    return e;
  }
  ADD_FAILURE() << "expected " << to_string(code) << ", nothing was thrown";
  return Error(ErrorCode::ok, "");
}

}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "comm/communicator_impl.hpp"
#include "comm/plugin_host.hpp"
#include "support/cluster.hpp"
#include "support/promptly.hpp"
#include "unit/comm/batches.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using testing::Batch;
using testing::ClusterOptions;
using testing::error_of;
using testing::run_cluster;
using testing::run_ranks;
using testing::soon;

ClusterOptions cluster(int ranks, const char* transport = "loopback") {
  ClusterOptions o;
  o.ranks = ranks;
  o.transport = transport;
  return o;
}

TEST(Barrier, NobodyPassesBeforeTheLastArrives) {
  std::atomic<int> arrived{0};
  run_cluster(cluster(4), [&](Communicator& comm) {
    for (int round = 1; round <= 3; ++round) {
      if (comm.rank() == round) std::this_thread::sleep_for(30ms);
      ++arrived;
      comm.barrier(soon());
      EXPECT_GE(arrived.load(), 4 * round);
    }
  });
}

TEST(Barrier, NamesTheRanksThatDoNotCome) {
  ClusterOptions options = cluster(4);
  options.finalize = false;
  std::atomic<int> done{0};
  run_ranks(options, [&](Communicator& comm) {
    if (comm.rank() == 1 || comm.rank() == 3) {
      while (done.load() < 2) std::this_thread::sleep_for(5ms);
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      comm.barrier(Deadline::after(300ms));
      ADD_FAILURE() << "two ranks are missing";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::timeout);
      EXPECT_NE(std::string(e.what()).find("ranks 1, 3"), std::string::npos) << e.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 300ms + testing::promptly);
    ++done;
    while (done.load() < 2) std::this_thread::sleep_for(5ms);
  });
}

TEST(Split, GroupsByColorOrdersByKeyAndWorksAlone) {
  for (const char* transport : {"loopback", "tcp"}) {
    run_cluster(cluster(5, transport), [&](Communicator& comm) {
      // Ranks 0, 2, 4 backwards; 1 and 3; and then 4 joins none.
      std::optional<Communicator> group = comm.split(comm.rank() % 2, -comm.rank());
      ASSERT_TRUE(group);
      const bool even = comm.rank() % 2 == 0;
      EXPECT_EQ(group->size(), even ? 3 : 2);
      EXPECT_EQ(group->rank(), even ? 2 - comm.rank() / 2 : 1 - comm.rank() / 2);
      const Stream stream = comm.device().create_stream();
      int mine = comm.rank(), got = -1;
      const int next = (group->rank() + 1) % group->size(),
                previous = (group->rank() + group->size() - 1) % group->size();
      const Transfer ring[] = {{Transfer::Direction::send, next, &mine, sizeof(int)},
                               {Transfer::Direction::receive, previous, &got, sizeof(int)}};
      group->exchange(ring, stream).synchronize(soon());
      EXPECT_EQ(got % 2, comm.rank() % 2);
      EXPECT_EQ(got, (comm.rank() + 2) % (even ? 6 : 4));
      group->finalize(soon());
      std::optional<Communicator> second = comm.split(comm.rank() == 4 ? -1 : 7, 0);
      EXPECT_EQ(second.has_value(), comm.rank() != 4);
      if (second) {
        EXPECT_EQ(second->rank(), comm.rank());
        second->finalize(soon());
      }
    });
  }
}

TEST(Prepare, NamesTheRankAndTheFactThatDiffer) {
  const Batch batch{{0, 24}, {}, Partition::contiguous, {4, 2, 8, 16}};
  const BatchSpec spec{{{"kv", DType::f32, 2, DType::f32}}, {}, "model A"};
  struct Case {
    std::function<void(Batch&, BatchSpec&)> change;
    std::string names;
  };
  const std::vector<Case> cases{
      {[](Batch& b, BatchSpec&) {
         b.cu = {0, 25};
       },
       "the layout differs"},
      {[](Batch& b, BatchSpec&) { b.partition = Partition::zigzag; }, "the layout differs"},
      {[](Batch& b, BatchSpec&) { b.options.chunk_tokens = 5; }, "plan options differs"},
      {[](Batch&, BatchSpec& s) { s.gather[0].dtype = DType::bf16; }, "gather fields differs"},
      {[](Batch&, BatchSpec& s) { s.fingerprint = "model B"; }, "rank 0 has 'model A', rank 2 has 'model B'"},
  };
  for (const Case& c : cases) {
    ClusterOptions options = cluster(3);
    options.finalize = false;
    const auto thrown = run_ranks(options, [&](Communicator& comm) {
      Batch b = batch;
      BatchSpec s = spec;
      if (comm.rank() == 2) c.change(b, s);
      comm.prepare(b.plan(comm.rank(), 3), s);
    });
    for (const auto& e : thrown) {
      const Error error = error_of(e);
      EXPECT_EQ(error.code(), ErrorCode::version_mismatch) << error.what();
      EXPECT_EQ(error.rank(), 2);
      EXPECT_NE(std::string(error.what()).find(c.names), std::string::npos) << error.what();
    }
  }
}

TEST(Create, RanksOfDifferentTransportsDoNotMeet) {
  const auto store = HashStore::create(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions options;
      options.rank = r;
      options.size = 2;
      options.store = store->attach(r);
      options.transport = r == 0 ? "tcp" : "loopback";
      try {
        Communicator::create(options);
        ADD_FAILURE() << "they met";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::version_mismatch) << e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

// What each of two ranks is told that believe in these sizes; the store has room for both.
std::vector<std::string> told_with_sizes(int first, int other) {
  const auto store = HashStore::create(3);
  const std::shared_ptr<Store> views[] = {store->attach(0), store->attach(1)};
  std::vector<std::string> told(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions options;
      options.rank = r;
      options.size = r == 0 ? first : other;
      options.store = views[r];
      options.transport = "loopback";
      try {
        Communicator::create(options);
        ADD_FAILURE() << "they met";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), r == 0 ? ErrorCode::aborted : ErrorCode::invalid_argument) << e.what();
        EXPECT_EQ(e.rank(), 1);
        told[static_cast<std::size_t>(r)] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return told;
}

TEST(Create, RanksOfDifferentSizesAreToldSoOnBothSides) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [first, other] : {std::pair(2, 3), std::pair(3, 2)}) {
    const std::string expected =
        "rank 1 was created with size " + std::to_string(other) + ", rank 0 with size " + std::to_string(first);
    for (const std::string& what : told_with_sizes(first, other)) {
      EXPECT_NE(what.find(expected), std::string::npos) << what;
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << "only the deadline of 10 s ended it";
}

TEST(Create, AMissingRankIsNamedWithinTheDeadline) {
  const auto store = HashStore::create(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions options;
      options.rank = r;
      options.size = 3;
      options.store = store->attach(r);
      options.transport = "loopback";
      options.rendezvous_timeout = 300ms;
      const auto begin = std::chrono::steady_clock::now();
      try {
        Communicator::create(options);
        ADD_FAILURE() << "rank 2 is missing";
      } catch (const Error& e) {
        EXPECT_TRUE(e.code() == ErrorCode::timeout || e.code() == ErrorCode::peer_failed ||
                    e.code() == ErrorCode::aborted)
            << e.what();
        if (r == 0) {
          EXPECT_NE(std::string(e.what()).find("rank 2"), std::string::npos) << e.what();
        }
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 300ms + testing::promptly);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Create, RejectsBadOptions) {
  auto code = [](auto&& change) {
    CommunicatorOptions options;
    change(options);
    try {
      Communicator::create(options);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::ok;
  };
  EXPECT_EQ(code([](CommunicatorOptions& o) { o.size = 0; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([](CommunicatorOptions& o) { o.rank = 1; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([](CommunicatorOptions& o) { o.rank = -1; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([](CommunicatorOptions& o) { o.size = 2; }), ErrorCode::invalid_argument) << "no store";
  EXPECT_EQ(code([](CommunicatorOptions& o) { o.transport = "pigeon"; }), ErrorCode::unsupported);
  EXPECT_EQ(code([](CommunicatorOptions& o) { o.operation_timeout = 0ms; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([](CommunicatorOptions& o) { o.trace = std::make_shared<Trace>(3); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([](CommunicatorOptions&) {}), ErrorCode::ok);
}

TEST(Finalize, LaterCallsAreInvalidUsage) {
  ClusterOptions options = cluster(2);
  options.finalize = false;
  run_cluster(options, [](Communicator& comm) {
    comm.finalize(soon());
    for (const auto& call : {std::function<void()>([&] { comm.barrier(soon()); }),
                             std::function<void()>([&] { comm.finalize(soon()); })}) {
      try {
        call();
        ADD_FAILURE() << "finalized";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_usage) << e.what();
      }
    }
  });
}

std::size_t entries(const char* directory) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator{}));
}

TEST(Lifetime, NoDescriptorOrThreadStaysBehind) {
  auto round = [] { run_cluster(cluster(3, "tcp"), [](Communicator& comm) { comm.barrier(soon()); }); };
  round();
  const std::size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int i = 0; i < 10; ++i) round();
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

TEST(Clock, OffsetBetweenThreadsOfAProcessIsWithinARoundTrip) {
  const auto& transport = detail::find_transport("loopback");
  const detail::GroupId group{9, 9, 9};
  std::vector<std::unique_ptr<detail::Endpoint>> endpoints;
  for (int r = 0; r < 2; ++r) {
    endpoints.push_back(std::make_unique<detail::PluginEndpoint>(
        transport, r, 2, group, std::map<std::string, std::string>{}, -1, [](int, const std::string&) {}));
  }
  std::vector<std::string> addresses{endpoints[0]->address(), endpoints[1]->address()};
  std::thread zero([&] {
    endpoints[0]->connect(addresses, soon());
    detail::clock_offset(*endpoints[0], 0, 1, soon());
  });
  endpoints[1]->connect(addresses, soon());
  const std::int64_t begin = now_ns();
  const std::int64_t offset = detail::clock_offset(*endpoints[1], 1, 0, soon());
  EXPECT_LT(std::abs(offset), now_ns() - begin);
  zero.join();
}

}  // namespace
}  // namespace tandem

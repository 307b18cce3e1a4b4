// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <thread>

#include "conformance/setups.hpp"
#include "support/random.hpp"

namespace tandem::conformance {
namespace {

TEST_P(Conformance, ManySmallTransfers) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  constexpr std::uint64_t count = 10000;
  std::vector<std::uint64_t> sent(count), received(count, ~std::uint64_t{0});
  std::vector<tandem_transfer> sends, receives;
  for (std::uint64_t i = 0; i < count; ++i) {
    sent[i] = i * 0x9E3779B97F4A7C15U;
    sends.push_back(send_to(1, i % 7, &sent[i], 8));
    receives.push_back(receive_from(0, i % 7, &received[i], 8));
  }
  auto& sending = mesh[0].post(sends);
  auto& receiving = mesh[1].post(receives);
  ASSERT_TRUE(receiving.wait());
  ASSERT_TRUE(sending.wait());
  EXPECT_TRUE(sending.all_once_with(TANDEM_OK));
  EXPECT_TRUE(receiving.all_once_with(TANDEM_OK));
  EXPECT_EQ(received, sent);
}

TEST_P(Conformance, RingSendsAtOnce) {
  Mesh mesh(transport(), 3, options());
  ASSERT_TRUE(mesh.connected());
  const std::size_t bytes = (sanitized || options().contains("segment_bytes") ? 16U : 64U) << 20;
  std::vector<std::vector<char>> sent, received;
  std::vector<Batch*> batches;
  for (int r = 0; r < 3; ++r) {
    sent.push_back(pattern(r, (r + 1) % 3, 1, 0, bytes));
    received.push_back(poisoned(bytes));
  }
  for (int r = 0; r < 3; ++r) {
    batches.push_back(&mesh[r].post({send_to((r + 1) % 3, 1, sent[static_cast<std::size_t>(r)].data(), bytes)}));
  }
  for (int r = 0; r < 3; ++r) {
    batches.push_back(
        &mesh[r].post({receive_from((r + 2) % 3, 1, received[static_cast<std::size_t>(r)].data(), bytes)}));
  }
  for (auto* batch : batches) ASSERT_TRUE(batch->wait());
  for (std::size_t r = 0; r < 3; ++r) EXPECT_TRUE(received[r] == sent[(r + 2) % 3]);
}

TEST_P(Conformance, PostsFromSeveralThreads) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  constexpr std::uint64_t threads = 4, each = 100;
  std::vector<std::vector<char>> sent(threads * each), received(threads * each);
  std::vector<std::thread> posters;
  std::atomic<std::size_t> failed{0};
  for (std::uint64_t i = 0; i < threads * each; ++i) {
    sent[i] = pattern(0, 1, i / each, i % each, 512);
    received[i] = poisoned(512);
  }
  for (std::uint64_t t = 0; t < 2 * threads; ++t) {
    posters.emplace_back([&, t] {
      const bool sends = t % 2 == 0;
      const auto tag = t / 2;
      std::vector<Batch*> batches;
      for (std::uint64_t i = tag * each; i < (tag + 1) * each; ++i) {
        batches.push_back(sends ? &mesh[0].post({send_to(1, tag, sent[i].data(), 512)})
                                : &mesh[1].post({receive_from(0, tag, received[i].data(), 512)}));
      }
      for (auto* batch : batches) {
        if (!batch->wait() || !batch->all_once_with(TANDEM_OK)) ++failed;
      }
    });
  }
  for (auto& poster : posters) poster.join();
  EXPECT_EQ(failed, 0U);
  EXPECT_EQ(received, sent);
}

/// A schedule of transfers among all pairs. Each rank posts its side in its own order, in posts of its own sizes, with
/// pauses of its own; only within one (src, dst, tag) do both sides keep the order.
struct Schedule {
  struct Planned {
    int src, dst;
    std::uint64_t tag, index;
    std::vector<char> sent, received;
  };
  std::vector<Planned> transfers;

  Schedule(std::mt19937_64& rng, int ranks, std::size_t count) {
    std::map<std::tuple<int, int, std::uint64_t>, std::uint64_t> seen;
    for (std::size_t i = 0; i < count; ++i) {
      const int src = static_cast<int>(rng() % static_cast<std::uint64_t>(ranks));
      const int dst = (src + 1 + static_cast<int>(rng() % static_cast<std::uint64_t>(ranks - 1))) % ranks;
      const std::uint64_t tag = rng() % 5;
      const std::size_t limit = std::size_t{1} << (rng() % 18);
      const std::size_t bytes = rng() % (limit + 1);
      const auto index = seen[{src, dst, tag}]++;
      transfers.push_back({src, dst, tag, index, pattern(src, dst, tag, index, bytes), poisoned(bytes)});
    }
  }

  /// What `rank` posts: shuffled, but in order within each route.
  std::vector<tandem_transfer> side_of(int rank, std::mt19937_64& rng) {
    std::map<std::tuple<int, int, std::uint64_t>, std::vector<tandem_transfer>> routes;
    std::vector<std::tuple<int, int, std::uint64_t>> turns;
    for (auto& t : transfers) {
      if (t.src != rank && t.dst != rank) continue;
      const std::tuple route(t.src, t.dst, t.tag);
      turns.push_back(route);
      routes[route].push_back(t.src == rank ? send_to(t.dst, t.tag, t.sent.data(), t.sent.size())
                                            : receive_from(t.src, t.tag, t.received.data(), t.received.size()));
    }
    std::shuffle(turns.begin(), turns.end(), rng);
    std::map<std::tuple<int, int, std::uint64_t>, std::size_t> next;
    std::vector<tandem_transfer> ordered;
    for (const auto& route : turns) ordered.push_back(routes[route][next[route]++]);
    return ordered;
  }
};

TEST_P(Conformance, RandomTransfersAllArriveWhereTheyBelong) {
  for (std::uint64_t round = 0; round < 3; ++round) {
    auto rng = testing::test_rng(round);
    const int ranks = 2 + static_cast<int>(rng() % 4);
    Mesh mesh(transport(), ranks, options());
    ASSERT_TRUE(mesh.connected());
    Schedule schedule(rng, ranks, 400);
    std::vector<std::thread> threads;
    std::atomic<std::size_t> failed{0};
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r, own = std::mt19937_64(rng()), side = schedule.side_of(r, rng)]() mutable {
        std::vector<Batch*> batches;
        for (std::size_t at = 0; at < side.size();) {
          const auto count = std::min<std::size_t>(1 + own() % 20, side.size() - at);
          const auto from = side.begin() + static_cast<std::ptrdiff_t>(at);
          batches.push_back(&mesh[r].post({from, from + static_cast<std::ptrdiff_t>(count)}));
          at += count;
          if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
        }
        for (auto* batch : batches) {
          if (!batch->wait() || !batch->all_once_with(TANDEM_OK)) ++failed;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(failed, 0U);
    for (const auto& t : schedule.transfers)
      ASSERT_TRUE(t.received == t.sent) << t.src << " to " << t.dst << " tag " << t.tag << " number " << t.index;
  }
}

}  // namespace
}  // namespace tandem::conformance

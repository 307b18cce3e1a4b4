// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>

#include "conformance/setups.hpp"

namespace tandem::conformance {
namespace {

TEST_P(Conformance, DescribesItself) {
  const auto& t = transport();
  EXPECT_EQ(t.struct_size, sizeof(tandem_transport));
  EXPECT_EQ(t.abi, TANDEM_TRANSPORT_ABI);
  EXPECT_EQ(std::string(GetParam().name).find(t.name), 0U);
  EXPECT_NE(std::string(t.description), "");
  for (const auto& [key, value] : options())
    EXPECT_NE(std::string(t.option_help).find(key + ": "), std::string::npos) << key << " is not documented";
  EXPECT_GT(t.max_message, std::uint64_t{1} << 40);
}

TEST_P(Conformance, AGroupOfOneOpensAndCloses) {
  Mesh mesh(transport(), 1, options());
  EXPECT_TRUE(mesh.connected());
}

TEST_P(Conformance, AddressThatDoesNotFitSaysHowLongItIs) {
  tandem_transport_context* context = nullptr;
  const tandem_host_services services{sizeof(services), nullptr, nullptr, nullptr};
  tandem_open_params params{sizeof(params), 0, 1, {}, nullptr, 0, -1};
  std::ranges::copy(fresh_group(), params.group);
  ASSERT_EQ(transport().open(&services, &params, &context), TANDEM_OK);
  std::uint64_t bytes = 1;
  char tiny = 0;
  EXPECT_EQ(transport().address(context, &tiny, &bytes), code(ErrorCode::out_of_memory));
  ASSERT_GT(bytes, 1U);
  ASSERT_LE(bytes, 4096U);
  std::vector<char> fits(bytes);
  EXPECT_EQ(transport().address(context, fits.data(), &bytes), TANDEM_OK);
  EXPECT_EQ(bytes, fits.size());
  transport().close(context);
}

TEST_P(Conformance, MovesEverySizeBothWays) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  const std::vector<std::size_t> sizes{0,    1,    2,    3,     31,    32,       33,
                                       1499, 1500, 1501, 16384, 65537, 1U << 20, (3U << 20) + 7};
  std::vector<std::vector<char>> sent[2], received[2];
  Batch* batches[2];
  for (const int r : {0, 1}) {
    std::vector<tandem_transfer> transfers;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sent[r].push_back(pattern(r, 1 - r, 9, i, sizes[i]));
      received[r].push_back(poisoned(sizes[i]));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      transfers.push_back(send_to(1 - r, 9, sent[r][i].data(), sizes[i]));
      transfers.push_back(receive_from(1 - r, 9, received[r][i].data(), sizes[i]));
    }
    batches[r] = &mesh[r].post(transfers);
  }
  for (const int r : {0, 1}) {
    ASSERT_TRUE(batches[r]->wait());
    EXPECT_TRUE(batches[r]->all_once_with(TANDEM_OK));
  }
  EXPECT_EQ(received[0], sent[1]);
  EXPECT_EQ(received[1], sent[0]);
}

TEST_P(Conformance, MatchesByTagWhateverTheOrderOfPosting) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  constexpr std::uint64_t tags[] = {5, 0, ~std::uint64_t{0}, 1, std::uint64_t{1} << 63};
  std::vector<std::vector<char>> sent, received;
  std::vector<tandem_transfer> sends, receives;
  for (const auto tag : tags) {
    sent.push_back(pattern(0, 1, tag, 0, 1000));
    received.push_back(poisoned(1000));
  }
  for (std::size_t i = 0; i < std::size(tags); ++i) {
    sends.push_back(send_to(1, tags[i], sent[i].data(), 1000));
    receives.push_back(receive_from(0, tags[i], received[i].data(), 1000));
  }
  std::ranges::reverse(receives);
  auto& sending = mesh[0].post(sends);
  auto& receiving = mesh[1].post(receives);
  ASSERT_TRUE(sending.wait());
  ASSERT_TRUE(receiving.wait());
  EXPECT_EQ(received, sent);
}

TEST_P(Conformance, EqualTagsMatchInOrder) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  for (const bool receive_first : {true, false}) {
    std::vector<std::vector<char>> sent, received;
    std::vector<tandem_transfer> sends;
    std::vector<Batch*> batches;
    for (std::uint64_t i = 0; i < 50; ++i) {
      // Long ones first: a transport that starts short ones early would show.
      const std::size_t bytes = (50 - i) * 2000;
      sent.push_back(pattern(0, 1, 3, i, bytes));
      received.push_back(poisoned(bytes));
    }
    for (auto& bytes : sent) sends.push_back(send_to(1, 3, bytes.data(), bytes.size()));
    if (!receive_first) batches.push_back(&mesh[0].post(sends));
    const auto post_receives = [&] {
      for (auto& bytes : received) batches.push_back(&mesh[1].post({receive_from(0, 3, bytes.data(), bytes.size())}));
    };
    if (receive_first) post_receives();
    // A transfer the other way, so that the side that is second meets what the first one has posted, all of it.
    const int first = receive_first ? 1 : 0;
    char byte = 0;
    auto& marker = mesh[1 - first].post({receive_from(first, 4, &byte, 1)});
    mesh[first].post({send_to(1 - first, 4, "x", 1)});
    ASSERT_TRUE(marker.wait());
    if (receive_first) {
      batches.push_back(&mesh[0].post(sends));
    } else {
      post_receives();
    }
    for (auto* batch : batches) ASSERT_TRUE(batch->wait());
    EXPECT_EQ(received, sent);
  }
}

TEST_P(Conformance, AnUnpostedReceiveBlocksNothingElse) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  const auto big = pattern(0, 1, 1, 0, 8U << 20);
  const auto small = pattern(0, 1, 2, 0, 100);
  auto big_received = poisoned(big.size());
  auto small_received = poisoned(small.size());
  auto& sends = mesh[0].post({send_to(1, 1, big.data(), big.size()), send_to(1, 2, small.data(), small.size())});
  ASSERT_TRUE(mesh[1].post({receive_from(0, 2, small_received.data(), small.size())}).wait());
  EXPECT_EQ(small_received, small);
  EXPECT_LE(sends.completed(), 1U) << "the first send has nowhere to go yet";
  ASSERT_TRUE(mesh[1].post({receive_from(0, 1, big_received.data(), big.size())}).wait());
  ASSERT_TRUE(sends.wait());
  EXPECT_EQ(big_received, big);
}

TEST_P(Conformance, RanksDoNotMixUpSenders) {
  Mesh mesh(transport(), 4, options());
  ASSERT_TRUE(mesh.connected());
  std::vector<std::vector<char>> received(16), expected(16), sent(16);
  std::vector<Batch*> batches;
  for (int r = 0; r < 4; ++r) {
    std::vector<tandem_transfer> transfers;
    for (int p = 0; p < 4; ++p) {
      if (p == r) continue;
      const auto out = static_cast<std::size_t>(4 * r + p), in = static_cast<std::size_t>(4 * p + r);
      sent[out] = pattern(r, p, 1, 0, 10000);
      received[in] = poisoned(10000);
      transfers.push_back(send_to(p, 1, sent[out].data(), 10000));
      transfers.push_back(receive_from(p, 1, received[in].data(), 10000));
    }
    batches.push_back(&mesh[r].post(transfers));
  }
  for (auto* batch : batches) ASSERT_TRUE(batch->wait());
  EXPECT_EQ(received, sent);
}

/// One of two who play a ball back and forth, each move posted by the completion before it, until the group closes.
struct Player {
  Mesh* mesh = nullptr;
  int rank = 0;
  std::uint64_t ball = 0;
  int rounds = 0;
  std::mutex mutex;
  std::condition_variable changed;

  void receive() { (*mesh)[rank].post_raw(receive_from(1 - rank, 1, &ball, sizeof(ball)), &Player::received, this); }
  void send() { (*mesh)[rank].post_raw(send_to(1 - rank, 1, &ball, sizeof(ball)), &Player::sent, this); }
  static void received(void* user, std::uint64_t, tandem_status status, const char*) {
    auto& self = *static_cast<Player*>(user);
    if (status != TANDEM_OK) return;
    ++self.ball;
    self.send();
  }
  static void sent(void* user, std::uint64_t, tandem_status status, const char*) {
    auto& self = *static_cast<Player*>(user);
    if (status != TANDEM_OK) return;
    {
      const std::lock_guard lock(self.mutex);
      ++self.rounds;
      self.changed.notify_all();
    }
    self.receive();
  }
};

TEST_P(Conformance, CompletionsMayPost) {
  Player players[2];
  Mesh mesh(transport(), 2, options());  // closes before the players go
  ASSERT_TRUE(mesh.connected());
  for (const int r : {0, 1}) {
    players[r].mesh = &mesh;
    players[r].rank = r;
  }
  players[1].receive();
  players[0].send();
  for (auto& player : players) {
    std::unique_lock lock(player.mutex);
    EXPECT_TRUE(player.changed.wait_for(lock, std::chrono::seconds(20), [&] { return player.rounds >= 100; }));
  }
  for (const int r : {0, 1}) mesh[r].close();
  EXPECT_GE(players[1].ball, 199U);
}

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(all_setups()), setup_name);

}  // namespace
}  // namespace tandem::conformance

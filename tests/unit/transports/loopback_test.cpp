// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>

#include "conformance/mesh.hpp"
#include "transports/loopback/control.hpp"

extern "C" const tandem_transport* tandem_transport_query_v0_loopback(void);

namespace tandem {
namespace {

using conformance::Batch;
using conformance::Mesh;
using conformance::pattern;
using conformance::poisoned;
using conformance::receive_from;
using conformance::send_to;
using std::chrono::milliseconds;
using std::chrono::seconds;

const tandem_transport& transport() { return *tandem_transport_query_v0_loopback(); }

TEST(Loopback, GateHoldsWhatMatchesAndNothingElse) {
  Mesh mesh(transport(), 2);
  ASSERT_TRUE(mesh.connected());
  auto gate = loopback::hold([](const loopback::Delivery& d) { return d.src == 0 && d.dst == 1 && d.tag == 7; });
  const auto sent = pattern(0, 1, 7, 0, 1000);
  auto held = poisoned(1000);
  auto passed = poisoned(1000);
  mesh[0].post({send_to(1, 7, sent.data(), sent.size())});
  auto& waiting = mesh[1].post({receive_from(0, 7, held.data(), held.size())});
  ASSERT_TRUE(gate.wait_held(1, Deadline::after(seconds(5))));

  mesh[0].post({send_to(1, 8, sent.data(), sent.size())});
  ASSERT_TRUE(mesh[1].post({receive_from(0, 8, passed.data(), passed.size())}).wait());
  EXPECT_EQ(passed, sent);
  EXPECT_EQ(waiting.completed(), 0U);
  EXPECT_EQ(held, poisoned(1000));

  gate.release();
  ASSERT_TRUE(waiting.wait());
  EXPECT_EQ(held, sent);
  EXPECT_EQ(gate.held(), 1U);
}

TEST(Loopback, GateSeesWhoSendsWhatToWhom) {
  Mesh mesh(transport(), 3);
  ASSERT_TRUE(mesh.connected());
  loopback::Delivery seen;
  auto gate = loopback::hold([&](const loopback::Delivery& d) {
    if (d.bytes == 33) seen = d;
    return d.bytes == 33;
  });
  const auto sent = pattern(2, 1, 0xABCD, 0, 33);
  auto received = poisoned(33);
  mesh[2].post({send_to(1, 0xABCD, sent.data(), sent.size())});
  auto& receive = mesh[1].post({receive_from(2, 0xABCD, received.data(), received.size())});
  ASSERT_TRUE(gate.wait_held(1, Deadline::after(seconds(5))));
  gate.release();
  ASSERT_TRUE(receive.wait());
  EXPECT_EQ(seen.src, 2);
  EXPECT_EQ(seen.dst, 1);
  EXPECT_EQ(seen.tag, 0xABCDU);
}

TEST(Loopback, ReleaseLetsGoInOrderAndHoldsNothingMore) {
  Mesh mesh(transport(), 2);
  ASSERT_TRUE(mesh.connected());
  std::vector<std::vector<char>> sent, received;
  for (std::uint64_t i = 0; i < 3; ++i) {
    sent.push_back(pattern(0, 1, 5, i, 64));
    received.push_back(poisoned(64));
  }
  Batch* receives = nullptr;
  {
    auto gate = loopback::hold([](const auto&) { return true; });
    for (const auto& bytes : sent) mesh[0].post({send_to(1, 5, bytes.data(), 64)});
    receives = &mesh[1].post({receive_from(0, 5, received[0].data(), 64), receive_from(0, 5, received[1].data(), 64),
                              receive_from(0, 5, received[2].data(), 64)});
    ASSERT_TRUE(gate.wait_held(1, Deadline::after(seconds(5))));
    EXPECT_FALSE(gate.wait_held(2, Deadline::after(milliseconds(20)))) << "the second overtook the first";
  }
  ASSERT_TRUE(receives->wait());
  EXPECT_EQ(received, sent);
}

TEST(Loopback, TwoGatesMustBothOpen) {
  Mesh mesh(transport(), 2);
  ASSERT_TRUE(mesh.connected());
  auto first = loopback::hold([](const auto& d) { return d.tag == 1; });
  auto second = loopback::hold([](const auto& d) { return d.bytes == 8; });
  auto from = pattern(0, 1, 1, 0, 8);
  auto to = poisoned(8);
  mesh[0].post({send_to(1, 1, from.data(), 8)});
  auto& receive = mesh[1].post({receive_from(0, 1, to.data(), 8)});
  ASSERT_TRUE(first.wait_held(1, Deadline::after(seconds(5))));
  first.release();
  ASSERT_TRUE(second.wait_held(1, Deadline::after(seconds(5))));
  EXPECT_EQ(receive.completed(), 0U);
  second.release();
  ASSERT_TRUE(receive.wait());
  EXPECT_EQ(from, to);
}

TEST(Loopback, HeldTransfersEndWithAbortAndClose) {
  Mesh mesh(transport(), 3);
  ASSERT_TRUE(mesh.connected());
  auto gate = loopback::hold([](const auto&) { return true; });
  char byte = 0;
  auto& send1 = mesh[0].post({send_to(1, 1, "a", 1)});
  auto& send2 = mesh[0].post({send_to(2, 1, "a", 1)});
  auto& receive1 = mesh[1].post({receive_from(0, 1, &byte, 1)});
  mesh[2].post({receive_from(0, 1, &byte, 1)});
  ASSERT_TRUE(gate.wait_held(2, Deadline::after(seconds(5))));
  mesh[1].abort("enough");
  ASSERT_TRUE(receive1.wait());
  EXPECT_TRUE(receive1.all_once_with(conformance::code(ErrorCode::aborted)));
  EXPECT_EQ(receive1.message(0), "enough");
  EXPECT_EQ(send1.completed(), 0U) << "an abort is local";
  mesh[2].close();
  ASSERT_TRUE(send2.wait());
  EXPECT_TRUE(send2.all_once_with(conformance::code(ErrorCode::peer_failed)));
  mesh[1].close();
  ASSERT_TRUE(send1.wait());
  EXPECT_TRUE(send1.all_once_with(conformance::code(ErrorCode::peer_failed)));
}

TEST(Loopback, DelaysReorderTransfersOfDifferentTags) {
  const auto order_with_seed = [](const std::string& seed) {
    Mesh mesh(transport(), 2, {{"delay_us", "30000"}, {"seed", seed}});
    std::vector<char> to(8);
    std::vector<tandem_transfer> receives, sends;
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
      sends.push_back(send_to(1, tag, "x", 1));
      receives.push_back(receive_from(0, tag, &to[tag], 1));
    }
    Batch& batch = mesh[1].post(receives);
    mesh[0].post(sends);
    // What this thread sees of it would depend on when it looks.
    EXPECT_TRUE(batch.wait());
    return batch.order();
  };
  const auto first = order_with_seed("1");
  ASSERT_EQ(first.size(), 8U);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  EXPECT_NE(first, order_with_seed("2"));
}

TEST(Loopback, RanksOfAnotherProcessAreRefused) {
  const auto group = conformance::fresh_group();
  conformance::Rank rank(transport(), 0, 2, group, {});
  auto foreign = rank.address();
  foreign.back() ^= 1;
  rank.connect({rank.address(), foreign});
  EXPECT_EQ(rank.connect_test(1), conformance::code(ErrorCode::transport));
  ASSERT_EQ(rank.logs().size(), 1U);
  EXPECT_NE(rank.logs()[0].find("rank 1"), std::string::npos);
}

TEST(Loopback, OneRankOpensOnce) {
  const auto group = conformance::fresh_group();
  conformance::Rank first(transport(), 0, 2, group, {});
  conformance::Rank twin(transport(), 0, 2, group, {});
  conformance::Rank stranger(transport(), 1, 3, group, {});
  EXPECT_EQ(first.open_status(), TANDEM_OK);
  EXPECT_EQ(twin.open_status(), conformance::code(ErrorCode::invalid_argument));
  EXPECT_EQ(stranger.open_status(), conformance::code(ErrorCode::invalid_argument));
}

}  // namespace
}  // namespace tandem

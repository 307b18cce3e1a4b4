// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>

#include "conformance/setups.hpp"
#include "support/promptly.hpp"

namespace tandem::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

TEST_P(Conformance, SizesThatDifferFailOnBothSidesAndNothingElseDoes) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  const auto sent = pattern(0, 1, 1, 0, 300);
  auto first = poisoned(300), second = poisoned(300);
  for (const std::size_t wanted : {299U, 0U}) {
    auto& sends = mesh[0].post({send_to(1, 1, sent.data(), 300), send_to(1, 1, sent.data(), 300)});
    auto& receives = mesh[1].post({receive_from(0, 1, first.data(), wanted), receive_from(0, 1, second.data(), 300)});
    ASSERT_TRUE(sends.wait());
    ASSERT_TRUE(receives.wait());
    for (auto* batch : {&sends, &receives}) {
      EXPECT_EQ(batch->status(0), code(ErrorCode::invalid_usage));
      EXPECT_NE(batch->message(0).find("300"), std::string::npos) << batch->message(0);
      EXPECT_NE(batch->message(0).find(std::to_string(wanted)), std::string::npos) << batch->message(0);
      EXPECT_EQ(batch->status(1), TANDEM_OK);
      EXPECT_EQ(batch->times(0), 1);
    }
    EXPECT_EQ(first, poisoned(300));
    EXPECT_EQ(second, sent);
    second = poisoned(300);
  }
  EXPECT_TRUE(mesh[0].failures().empty());
}

TEST_P(Conformance, PostNeverBlocks) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  std::vector<char> big(64U << 20);
  std::vector<Batch*> sends;
  auto fastest = Clock::duration::max();  // of several: a busy machine may hold any one of them up
  for (int i = 0; i < 5; ++i) {
    const auto before = Clock::now();
    sends.push_back(&mesh[0].post({send_to(1, 1, big.data(), big.size())}));
    fastest = std::min(fastest, Clock::now() - before);
  }
  EXPECT_LT(fastest, milliseconds(50));
  for (auto* send : sends) EXPECT_EQ(send->completed(), 0U);
  mesh[0].close();
  for (auto* send : sends) EXPECT_TRUE(send->all_once_with(code(ErrorCode::aborted)));
}

TEST_P(Conformance, AbortFromAnotherThreadCompletesEverything) {
  std::vector<char> bytes(8U << 20), moving(8U << 20);
  Mesh mesh(transport(), 3, options());  // closes before its buffers go: one send stays under way
  ASSERT_TRUE(mesh.connected());
  mesh[2].post({send_to(0, 9, bytes.data(), bytes.size())});
  auto& pending = mesh[0].post({receive_from(1, 1, bytes.data(), 10), send_to(1, 2, bytes.data(), 10),
                                receive_from(2, 3, bytes.data(), 0), receive_from(2, 9, moving.data(), moving.size())});
  std::thread other([&] { mesh[0].abort("somebody pulled the plug"); });
  const auto before = Clock::now();
  EXPECT_TRUE(pending.wait());
  EXPECT_LT(Clock::now() - before, testing::promptly);
  other.join();
  for (const std::size_t i : {0U, 1U, 2U}) {
    EXPECT_EQ(pending.status(i), code(ErrorCode::aborted));
    EXPECT_NE(pending.message(i).find("pulled the plug"), std::string::npos) << pending.message(i);
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(pending.times(i), 1);
  // What is aborted is out of use: the sender goes on, the buffer must not change.
  const auto after = moving;
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(moving, after);
}

TEST_P(Conformance, AfterAbortEverythingCompletesWithAborted) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  mesh[0].abort("first");
  mesh[0].abort("second");
  char byte = 0;
  auto& late = mesh[0].post({receive_from(1, 1, &byte, 1), send_to(1, 1, &byte, 1)});
  ASSERT_TRUE(late.wait());
  EXPECT_TRUE(late.all_once_with(code(ErrorCode::aborted)));
  EXPECT_NE(late.message(0).find("first"), std::string::npos) << late.message(0);
}

TEST_P(Conformance, AbortIsLocal) {
  Mesh mesh(transport(), 3, options());
  ASSERT_TRUE(mesh.connected());
  char byte = 0;
  auto& waiting = mesh[1].post({receive_from(0, 1, &byte, 1)});
  mesh[0].abort("");
  EXPECT_FALSE(waiting.wait(Deadline::after(milliseconds(30))));
  EXPECT_TRUE(mesh[1].failures().empty());
  auto& others = mesh[1].post({receive_from(2, 1, &byte, 1)});
  mesh[2].post({send_to(1, 1, "x", 1)});
  EXPECT_TRUE(others.wait());
  mesh[0].close();
  ASSERT_TRUE(waiting.wait());
  EXPECT_TRUE(waiting.all_once_with(code(ErrorCode::peer_failed)));
}

TEST_P(Conformance, CloseCompletesWhatIsPending) {
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  std::vector<char> bytes(1000);
  auto& pending = mesh[0].post({receive_from(1, 1, bytes.data(), 1000), send_to(1, 2, bytes.data(), 1000)});
  mesh[0].close();
  EXPECT_EQ(pending.completed(), 2U) << "close returned first";
  EXPECT_TRUE(pending.all_once_with(code(ErrorCode::aborted)));
}

TEST_P(Conformance, PeerThatClosesFailsWhatWaitsForIt) {
  Mesh mesh(transport(), 3, options());
  ASSERT_TRUE(mesh.connected());
  std::vector<char> bytes(1000);
  auto& pending = mesh[0].post({receive_from(1, 1, bytes.data(), 1000), send_to(1, 2, bytes.data(), 1000)});
  char byte = 0;
  auto& other = mesh[0].post({receive_from(2, 1, &byte, 1)});
  mesh[1].close();
  ASSERT_TRUE(pending.wait());
  EXPECT_TRUE(pending.all_once_with(code(ErrorCode::peer_failed)));
  EXPECT_NE(pending.message(0).find("rank 1"), std::string::npos) << pending.message(0);
  ASSERT_TRUE(mesh[0].wait_failures(1));
  auto& later = mesh[0].post({receive_from(1, 1, bytes.data(), 1000), send_to(1, 2, bytes.data(), 1000)});
  ASSERT_TRUE(later.wait());
  EXPECT_TRUE(later.all_once_with(code(ErrorCode::peer_failed)));
  EXPECT_EQ(mesh[0].failures().size(), 1U);
  EXPECT_EQ(mesh[0].failures().begin()->first, 1);
  EXPECT_EQ(mesh[0].connect_test(1), code(ErrorCode::peer_failed));
  // The third rank is not concerned.
  EXPECT_EQ(other.completed(), 0U);
  mesh[2].post({send_to(0, 1, "x", 1)});
  ASSERT_TRUE(other.wait());
  EXPECT_EQ(byte, 'x');
  EXPECT_TRUE(mesh[2].failures().empty()) << "an orderly close with nothing pending is no failure";
}

TEST_P(Conformance, WhatWasSentBeforeCloseArrives) {
  for (int round = 0; round < 5; ++round) {
    Mesh mesh(transport(), 2, options());
    ASSERT_TRUE(mesh.connected());
    const auto sent = pattern(0, 1, 1, 0, 1U << 20);
    auto received = poisoned(sent.size());
    auto& receive = mesh[1].post({receive_from(0, 1, received.data(), received.size())});
    ASSERT_TRUE(mesh[0].post({send_to(1, 1, sent.data(), sent.size())}).wait());
    mesh[0].close();
    ASSERT_TRUE(receive.wait());
    EXPECT_EQ(receive.status(0), TANDEM_OK) << receive.message(0);
    EXPECT_EQ(received, sent);
  }
}

TEST_P(Conformance, CloseDuringTransfersHarmsNobody) {
  for (int round = 0; round < 4; ++round) {
    Mesh mesh(transport(), 3, options());
    ASSERT_TRUE(mesh.connected());
    std::vector<std::vector<char>> buffers;
    std::vector<Batch*> batches;
    for (int r = 0; r < 3; ++r) {
      std::vector<tandem_transfer> transfers;
      for (int p = 0; p < 3; ++p) {
        if (p == r) continue;
        for (const int direction : {TANDEM_SEND, TANDEM_RECEIVE}) {
          buffers.emplace_back(2U << 20);
          transfers.push_back(
              {sizeof(tandem_transfer), p, direction, buffers.back().data(), buffers.back().size(), 1, 0, 0, 0, 0});
        }
      }
      batches.push_back(&mesh[r].post(transfers));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round * 300));
    mesh[0].close();
    EXPECT_EQ(batches[0]->completed(), 4U);
    for (auto* batch : batches) {
      ASSERT_TRUE(batch->wait());
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(batch->times(i), 1);
        // Between 1 and 2 nothing may go wrong; peers are 0 and 2 for rank 1, 0 and 1 for rank 2.
        if (batch != batches[0] && i >= 2) {
          EXPECT_EQ(batch->status(i), TANDEM_OK) << batch->message(i);
        }
      }
    }
  }
}

TEST_P(Conformance, RefusesWhatMakesNoSense) {
  const auto group = fresh_group();
  {
    auto options_plus = options();
    options_plus["colour"] = "green";
    Rank rank(transport(), 0, 2, group, options_plus);
    EXPECT_EQ(rank.open_status(), code(ErrorCode::invalid_argument));
    ASSERT_EQ(rank.logs().size(), 1U);
    EXPECT_NE(rank.logs()[0].find("colour"), std::string::npos) << rank.logs()[0];
  }
  for (const auto& [key, value] : options()) {
    Rank rank(transport(), 0, 2, group, {{key, "12x"}});
    EXPECT_EQ(rank.open_status(), code(ErrorCode::invalid_argument)) << key;
    ASSERT_EQ(rank.logs().size(), 1U);
    EXPECT_NE(rank.logs()[0].find("12x"), std::string::npos) << rank.logs()[0];
  }
  EXPECT_EQ(Rank(transport(), 2, 2, group, options()).open_status(), code(ErrorCode::invalid_argument));
  EXPECT_EQ(Rank(transport(), -1, 2, group, options()).open_status(), code(ErrorCode::invalid_argument));

  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  char byte = 0;
  for (const int peer : {-1, 0, 2}) {
    EXPECT_EQ(mesh[0].try_post({receive_from(1, 1, &byte, 1), send_to(peer, 1, &byte, 1)}),
              code(ErrorCode::invalid_argument))
        << peer;
  }
  EXPECT_EQ(mesh[0].try_post({receive_from(1, 1, nullptr, 1)}), code(ErrorCode::invalid_argument));
  auto sideways = send_to(1, 1, &byte, 1);
  sideways.direction = 2;
  EXPECT_EQ(mesh[0].try_post({sideways}), code(ErrorCode::invalid_argument));
  // The refused posts started nothing: this receive is the first to match.
  auto& receive = mesh[0].post({receive_from(1, 1, &byte, 1)});
  mesh[1].post({send_to(0, 1, "y", 1)});
  ASSERT_TRUE(receive.wait());
  EXPECT_EQ(byte, 'y');
}

TEST_P(Conformance, LeavesNoDescriptorAndNoThreadBehind) {
  const auto round = [&] {
    Mesh mesh(transport(), 3, options());
    ASSERT_TRUE(mesh.connected());
    char byte = 0;
    auto& receive = mesh[0].post({receive_from(1, 1, &byte, 1)});
    mesh[1].post({send_to(0, 1, "x", 1), receive_from(2, 5, &byte, 1)});
    ASSERT_TRUE(receive.wait());
  };
  round();
  const auto fds = open_fds();
  const auto threads = threads_of_process();
  for (int i = 0; i < 50; ++i) round();
  EXPECT_EQ(open_fds(), fds);
  EXPECT_EQ(threads_of_process(), threads);
}

}  // namespace
}  // namespace tandem::conformance

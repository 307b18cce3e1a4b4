// SPDX-License-Identifier: Apache-2.0
// Strangers and broken clients against a live server: whatever they send, the ranks of the job go on working.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "bootstrap/wire.hpp"
#include "support/random.hpp"
#include "unit/bootstrap/raw_socket.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::NoticeLog;
using testing::RawSocket;
using testing::soon;
using testing::TcpWorld;
namespace wire = detail::wire;

std::string random_bytes(std::mt19937_64& rng, std::size_t n) {
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(rng());
  return bytes;
}

/// Two ranks that keep talking through the store while a test misbehaves, and what they hear.
class GoodRanks {
 public:
  explicit GoodRanks(TcpWorld& w) : a_(w.join(0)), b_(w.join(1)), handle_(a_->listen(log_.listener())) {
    thread_ = std::thread([this] {
      for (int i = 0; !done_; ++i) {
        const std::string text = std::to_string(i);
        a_->set(text, text, soon());
        EXPECT_EQ(b_->get(text, soon()), text);
        rounds_ = i;
      }
    });
  }
  ~GoodRanks() {
    const int before = rounds_;
    const Deadline limit = soon();
    while (rounds_ < before + 3 && !limit.passed()) std::this_thread::yield();
    EXPECT_GE(rounds_, before + 3) << "the good ranks are stuck";
    done_ = true;
    thread_.join();
  }
  NoticeLog& log() { return log_; }

 private:
  NoticeLog log_;
  std::shared_ptr<Store> a_, b_;
  std::shared_ptr<void> handle_;
  std::atomic<bool> done_ = false;
  std::atomic<int> rounds_ = 0;
  std::thread thread_;
};

std::string hello_of(const TcpWorld& w, int rank) {
  const TcpStoreOptions options = w.options_of(rank);
  return wire::encode(wire::Hello{wire::version, options.token, rank, options.size});
}

TEST(HostileHello, GarbageIsDroppedCountedAndHarmsNobody) {
  TcpWorld w(2);
  GoodRanks good(w);
  auto rng = testing::test_rng();
  const std::string hello = hello_of(w, 0);
  std::uint64_t sent = 0;
  for (int i = 0; i < 60; ++i) {
    const RawSocket s = RawSocket::connect(w.server().port());
    ++sent;
    switch (i % 6) {
      case 0:
        s.send(random_bytes(rng, 1 + rng() % 10000));
        break;
      case 1:
        s.send("GET / HTTP/1.1\r\nHost: tandem\r\n\r\n");
        break;
      case 2:  // truncated
        s.send(hello.substr(0, rng() % hello.size()));
        break;
      case 3: {  // one bit of magic or token is wrong
        std::string wrong = hello;
        const std::size_t at = rng() % 2 == 0 ? rng() % 8 : 12 + rng() % 16;
        wrong[at] = static_cast<char>(wrong[at] ^ (1 << (rng() % 8)));
        s.send(wrong);
        break;
      }
      case 4:
        s.send(std::string(10000, '\xff'));
        break;
      default:  // a scanner that only looks whether the port is open
        break;
    }
    s.finish_sending();
    EXPECT_TRUE(s.closed_by_peer());
  }
  EXPECT_EQ(w.server().dropped_hellos(), sent);
  EXPECT_TRUE(good.log().all().empty());
}

TEST(HostileHello, ConnectionsThatNeverSpeakAreDroppedAfterASecond) {
  TcpWorld w(2);
  GoodRanks good(w);
  std::vector<RawSocket> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(RawSocket::connect(w.server().port()));
  // One drips: the second counts for the whole hello.
  const RawSocket drip = RawSocket::connect(w.server().port());
  const auto begin = Deadline::Clock::now();
  std::size_t sent = 0;
  const std::string hello = hello_of(w, 0);
  while (sent + 1 < hello.size() && drip.send(hello.substr(sent, 1)) &&
         Deadline::Clock::now() - begin < std::chrono::seconds(5)) {
    ++sent;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(4));
  for (const RawSocket& s : silent) EXPECT_TRUE(s.closed_by_peer());
  EXPECT_TRUE(drip.closed_by_peer());
  EXPECT_EQ(w.server().dropped_hellos(), silent.size() + 1);
  EXPECT_TRUE(good.log().all().empty());
}

// A rank with a good hello that then sends what it may not is lost, and only it.
class HostileMember : public ::testing::TestWithParam<std::pair<const char*, std::string>> {};

std::string frame_of(std::uint32_t length, const std::string& bytes) {
  std::string frame(4, '\0');
  for (std::size_t i = 0; i < 4; ++i) frame[i] = static_cast<char>(length >> (8 * i));
  return frame + bytes;
}

std::string body(char kind, const std::string& tail) { return std::string(1, kind) + std::string(16, '\0') + tail; }

INSTANTIATE_TEST_SUITE_P(
    Frames, HostileMember,
    ::testing::Values(std::pair("HugeLength", frame_of(0xFFFFFFFFU, "")),
                      std::pair("JustOverTheLimit", frame_of(wire::max_message + 1, "")),
                      std::pair("EmptyMessage", frame_of(0, "")), std::pair("ShortMessage", frame_of(20, "")),
                      std::pair("UnknownKind", frame_of(21, body('\x7f', std::string(4, '\0')))),
                      std::pair("KeyLongerThanTheMessage", frame_of(21, body('\0', "\xff\xff\xff\xff"))),
                      std::pair("AServersWord", wire::frame({wire::Kind::welcome, 0, 1, {}, {}})),
                      std::pair("UnknownNotice", wire::frame({wire::Kind::announce, 77, 1, {}, {}})),
                      std::pair("NoticeOfAnImpossibleRank",
                                wire::frame({wire::Kind::announce, 0, std::int64_t{1} << 40, {}, {}}))),
    [](const auto& info) { return info.param.first; });

TEST_P(HostileMember, IsLostAndHarmsNobody) {
  TcpWorld w(3);
  GoodRanks good(w);
  const RawSocket bad = RawSocket::connect(w.server().port());
  ASSERT_TRUE(bad.send(hello_of(w, 2)));
  ASSERT_EQ(bad.receive(4).size(), 4U);
  ASSERT_TRUE(bad.send(GetParam().second));
  EXPECT_THAT(good.log().wait_for(Store::Notice::Kind::peer_lost, 2).reason, HasSubstr("sent"));
  EXPECT_TRUE(bad.closed_by_peer());
}

TEST(HostileMember, RandomMessagesHarmNobody) {
  constexpr int members = 30;
  TcpWorld w(2 + members);
  GoodRanks good(w);
  auto rng = testing::test_rng();
  for (int m = 0; m < members; ++m) {
    const RawSocket bad = RawSocket::connect(w.server().port());
    ASSERT_TRUE(bad.send(hello_of(w, 2 + m)));
    std::string bytes;
    for (int i = 0; i < 20; ++i) {
      if (rng() % 8 == 0) {
        bytes += random_bytes(rng, rng() % 40);
      } else {
        // Well framed; the keys are the test's own, so that the good ranks' stay what they are.
        const auto kind = static_cast<wire::Kind>(rng() % (static_cast<unsigned>(wire::last_kind) + 1));
        bytes += wire::frame({kind, rng(), static_cast<std::int64_t>(rng()), "bad" + random_bytes(rng, rng() % 9),
                              random_bytes(rng, rng() % 100)});
      }
    }
    bad.send(bytes);
    bad.finish_sending();
    EXPECT_TRUE(bad.closed_by_peer());
  }
}

TEST(HostileMember, AConnectionCutInTheMiddleOfAMessageIsALoss) {
  TcpWorld w(3);
  GoodRanks good(w);
  {
    const RawSocket bad = RawSocket::connect(w.server().port());
    const std::string frame = wire::frame({wire::Kind::set, 1, 0, "key", std::string(1000, 'x')});
    ASSERT_TRUE(bad.send(hello_of(w, 2) + frame.substr(0, 500)));
    bad.receive(4);
  }
  EXPECT_FALSE(good.log().wait_for(Store::Notice::Kind::peer_lost, 2).reason.empty());
}

TEST(HostileServer, GarbageFromAServerFailsItsClientsCalls) {
  auto rng = testing::test_rng();
  for (int i = 0; i < 20; ++i) {
    const RawSocket listener = RawSocket::listen();
    const std::string garbage = i == 0 ? frame_of(0xFFFFFFFFU, "") : random_bytes(rng, 64);
    std::thread server([&] {
      const RawSocket s = listener.accept();
      s.receive(wire::hello_bytes);
      s.send(wire::frame({wire::Kind::welcome, 0, 5000, {}, {}}));
      s.send(garbage);
      s.finish_sending();
      s.closed_by_peer();
    });
    TcpStoreOptions options;
    options.endpoint = "127.0.0.1:" + std::to_string(listener.port());
    auto store = connect_store(options, soon());
    testing::error_of(ErrorCode::peer_failed, [&] { store->get("key", soon()); });
    store.reset();
    server.join();
  }
}

}  // namespace
}  // namespace tandem

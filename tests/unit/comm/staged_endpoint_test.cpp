// SPDX-License-Identifier: Apache-2.0
// What a staged transport does with the memory of its callers and its own, and when. The loopback's gates hold bytes
// up.
#include "comm/staged_endpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "comm/open_endpoint.hpp"
#include "comm/plugin_host.hpp"
#include "device/impl.hpp"
#include "support/cluster.hpp"
#include "support/random.hpp"
#include "support/stream_transport.hpp"
#include "transports/loopback/control.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using detail::Bundle;
using detail::Endpoint;
using detail::MarkWatcher;
using detail::Staging;
using detail::WireTransfer;
using testing::soon;
using Bytes = std::vector<std::uint8_t>;

Bytes random_bytes(std::mt19937_64& rng, std::size_t count) {
  Bytes bytes(count);
  for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(rng());
  return bytes;
}

template <class Done>
bool eventually(const Done& done) {
  for (const Deadline limit = soon(); !limit.passed(); std::this_thread::sleep_for(1ms)) {
    if (done()) return true;
  }
  return false;
}

WireTransfer transfer(int peer, std::uint32_t flag, std::uint8_t* data, std::size_t bytes) {
  WireTransfer t{peer, false, data, bytes, 7};
  t.flag = flag;
  return t;
}

TEST(Bundles, AreWhatFollowsEachOtherWithTheSameFlag) {
  std::array<std::uint8_t, 100> a{}, b{};
  const std::vector<WireTransfer> transfers{transfer(1, 5, a.data(), 10),    transfer(1, 5, a.data() + 10, 20),
                                            transfer(1, 5, b.data(), 3),     transfer(1, 6, b.data() + 3, 0),
                                            transfer(2, 6, b.data() + 3, 4), transfer(1, 6, a.data() + 30, 1)};
  const std::vector<Bundle> bundles = detail::make_bundles(transfers);
  ASSERT_EQ(bundles.size(), 4U);
  EXPECT_EQ(bundles[0].bytes, 33U);
  ASSERT_EQ(bundles[0].segments.size(), 2U) << "what is adjacent is one copy";
  EXPECT_EQ(bundles[0].segments[0].bytes, 30U);
  EXPECT_EQ(bundles[0].segments[1].offset, 30U);
  EXPECT_EQ(bundles[1].pieces(), 1U);
  EXPECT_EQ(bundles[1].bytes, 0U);
  EXPECT_EQ(bundles[2].peer, 2);
  EXPECT_EQ(bundles[3].flag, 6U);
  EXPECT_EQ(detail::bytes_of(bundles), 38U);
}

// In every piece, whatever the sizes: each byte once, in order.
TEST(Bundles, PiecesCoverEverySegment) {
  constexpr std::size_t piece = Bundle::piece_bytes;
  auto rng = testing::test_rng(1);
  for (const std::size_t total :
       {std::size_t{0}, std::size_t{1}, piece - 1, piece, piece + 1, 2 * piece, 3 * piece - 5}) {
    Bytes memory(2 * total + 64);
    std::vector<WireTransfer> transfers{transfer(1, 0, memory.data(), 0)};
    std::size_t at = 0;
    for (std::size_t left = total; left > 0;) {
      const std::size_t bytes = std::min<std::size_t>(left, 1 + rng() % (total / 2 + 1));
      transfers.push_back(transfer(1, 0, memory.data() + at, bytes));
      at += bytes + rng() % 2;
      left -= bytes;
    }
    const std::vector<Bundle> bundles = detail::make_bundles(transfers);
    ASSERT_EQ(bundles.size(), 1U);
    std::size_t covered = 0;
    for (std::size_t p = 0; p < bundles[0].pieces(); ++p) {
      EXPECT_EQ(bundles[0].bytes_of(p) == piece, p + 1 < bundles[0].pieces()) << "only the last is smaller";
      const std::size_t before = covered;
      bundles[0].for_each_part(p, [&](const std::byte*, std::size_t offset, std::size_t bytes) {
        EXPECT_EQ(offset, covered);
        covered += bytes;
      });
      EXPECT_EQ(covered - before, bundles[0].bytes_of(p));
    }
    EXPECT_EQ(covered, total);
  }
}

TEST(StagingMemory, GrowsAndKeepsWhatItWas) {
  Staging staging(Device::host());
  std::byte* const first = staging.take(100);
  std::fill_n(first, 100, std::byte{1});
  std::byte* const second = staging.take(1000);
  std::fill_n(second, 1000, std::byte{2});
  EXPECT_EQ(first[99], std::byte{1});
  staging.restart();
  std::byte* const again = staging.take(1100);  // there is room now for all of it
  staging.reserve(10);
  staging.restart();
  EXPECT_EQ(staging.take(1), again);
  EXPECT_EQ(staging.release().size(), 2U);
}

struct TestMark final : detail::MarkImpl {
  std::atomic<bool> set{false};
  bool reached() const noexcept override { return set.load(); }
};

TEST(MarkWatching, ActsInTheOrderOfAQueue) {
  std::array<std::shared_ptr<TestMark>, 3> marks{std::make_shared<TestMark>(), std::make_shared<TestMark>(),
                                                 std::make_shared<TestMark>()};
  std::atomic<int> order{0};
  std::array<int, 3> at{};
  MarkWatcher watcher;
  const auto note = [&](std::size_t i) {
    at[i] = order.load() + 1;
    ++order;
  };
  watcher.watch(0, marks[0], [&] { note(0); });
  watcher.watch(0, marks[1], [&] { note(1); });
  watcher.watch(1, marks[2], [&] { note(2); });
  marks[1]->set = true;
  marks[2]->set = true;
  EXPECT_TRUE(eventually([&] { return order.load() == 1; }));
  EXPECT_EQ(at[2], 1);
  marks[0]->set = true;
  EXPECT_TRUE(eventually([&] { return order.load() == 3; }));
  EXPECT_EQ(at, (std::array<int, 3>{2, 3, 1}));
  watcher.watch(0, std::make_shared<TestMark>(), [&] { ++order; });
  watcher.stop();
  watcher.watch(0, marks[0], [&] { ++order; });
  EXPECT_EQ(order.load(), 3);
}

// Rank 0 sends to rank 1; `queues` of both devices.
class StagedTransport : public ::testing::TestWithParam<int> {
 protected:
  static constexpr std::uint32_t lane = 2;
  static constexpr std::uint32_t flag = 17;

  StagedTransport() {
    static std::uint8_t number = 0;
    const detail::GroupId group{++number, 78};
    for (int r = 0; r < 2; ++r) {
      devices_.push_back(Device::host({.queues = GetParam(), .poison = true}));
      ends_.push_back(detail::open_endpoint({detail::choose_transport("staged:loopback", devices_.back()),
                                             {},
                                             devices_.back(),
                                             r,
                                             2,
                                             group,
                                             [](int, const std::string&) {},
                                             [this](const Status& status) {
                                               const std::lock_guard lock(mutex_);
                                               failures_.push_back(status);
                                             }}));
      streams_.push_back(devices_.back().create_stream());
    }
    const std::vector<std::string> addresses{ends_[0]->address(), ends_[1]->address()};
    for (const auto& end : ends_) end->connect(addresses, soon());
  }

  void begin(int rank, Bytes* into = nullptr) {
    std::vector<WireTransfer> receives;
    if (into != nullptr) {
      receives.push_back(transfer(0, flag, into->data(), into->size()));
      receives.back().receive = true;
    }
    end(rank).post(stream(rank), receives, {lane, true, false, false});
  }
  void send(Bytes& from) {
    const WireTransfer t = transfer(1, flag, from.data(), from.size());
    end(0).post(stream(0), {&t, 1}, {lane, false, true, true});
  }
  Endpoint& end(int rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  const Stream& stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]; }

  std::mutex mutex_;
  std::vector<Status> failures_;
  std::vector<Device> devices_;
  std::vector<Stream> streams_;
  std::vector<std::shared_ptr<Endpoint>> ends_;
  std::mt19937_64 rng_ = testing::test_rng(3);
};

INSTANTIATE_TEST_SUITE_P(Queues, StagedTransport, ::testing::Values(0, 1),
                         [](const auto& info) { return std::string(info.param == 0 ? "free" : "one_queue"); });

// What one operation sends is still in staging, on its way, while the next ones' sources have been handed over.
TEST_P(StagedTransport, OperationsFollowEachOtherWhileTheNetworkIsHeldUp) {
  const std::size_t sizes[] = {100, Bundle::piece_bytes * 2 + 11, 3, Bundle::piece_bytes, 70000};
  std::vector<Bytes> sources, expected, landed;
  for (const std::size_t bytes : sizes) {
    sources.push_back(random_bytes(rng_, bytes));
    landed.emplace_back(bytes, std::uint8_t{0xEE});
  }
  expected = sources;
  {
    loopback::Gate gate = loopback::hold([](const loopback::Delivery& d) { return d.tag == 7; });
    begin(0);
    send(sources[0]);
    end(0).wait_sent(stream(0));
    stream(0).synchronize(soon());  // it has been read, though nobody has received it
    std::fill(sources[0].begin(), sources[0].end(), std::uint8_t{0});
    EXPECT_FALSE(end(0).sent(1, lane));
    for (std::size_t i = 1; i < sources.size(); ++i) {
      begin(0);
      send(sources[i]);
    }
    end(0).wait_sent(stream(0));
    for (Bytes& into : landed) {
      begin(1, &into);
      end(1).wait(stream(1), 0, flag);
    }
    EXPECT_TRUE(gate.wait_held(1, soon()));
    EXPECT_FALSE(end(1).arrived(0, flag));
  }
  for (const Stream& s : streams_) s.synchronize(soon());
  EXPECT_TRUE(landed == expected);
  EXPECT_TRUE(end(1).arrived(0, flag));
  EXPECT_TRUE(eventually([&] { return end(0).sent(1, lane); }));
  EXPECT_THAT(failures_, ::testing::IsEmpty());
}

// The flag of the operation before stays up until the stream has come to the next.
TEST_P(StagedTransport, AFlagIsOfTheOperationThatTheStreamHasComeTo) {
  Bytes source = random_bytes(rng_, 10), first(10), second(10);
  EXPECT_FALSE(end(1).arrived(0, flag)) << "there was no operation";
  begin(0);
  send(source);
  begin(1, &first);
  end(1).wait(stream(1), 0, flag);
  stream(1).synchronize(soon());
  EXPECT_TRUE(eventually([&] { return end(0).sent(1, lane); }));
  const auto go = devices_[1].impl().create_signal();
  stream(1).impl().wait(go, {});
  begin(1, &second);
  EXPECT_TRUE(end(1).arrived(0, flag));
  go->set();
  EXPECT_TRUE(eventually([&] { return !end(1).arrived(0, flag); }));
  begin(0);
  EXPECT_TRUE(eventually([&] { return !end(0).sent(1, lane); }));
  send(source);
  EXPECT_TRUE(eventually([&] { return end(1).arrived(0, flag); }));
}

TEST_P(StagedTransport, AbortReleasesStreamsAndTouchesNothingAnyMore) {
  auto source = std::make_unique<Bytes>(random_bytes(rng_, 100));
  auto landed = std::make_unique<Bytes>(100, std::uint8_t{0xEE});
  const auto go = devices_[0].impl().create_signal();
  stream(0).impl().wait(go, {});
  begin(0);
  send(*source);
  begin(1, landed.get());
  end(1).wait(stream(1), 0, flag);
  end(1).abort("the test says so");
  end(0).abort("the test says so");
  source.reset();
  go->set();
  for (const Stream& s : streams_) s.synchronize(soon());
  EXPECT_THAT(*landed, ::testing::Each(0xEE));
  EXPECT_FALSE(end(1).arrived(0, flag));
  for (const auto& call :
       {std::function<void()>([&] { begin(0); }), std::function<void()>([&] { end(1).wait(stream(1), 0, flag); })}) {
    try {
      call();
      ADD_FAILURE() << "aborted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::aborted);
      EXPECT_NE(std::string(e.what()).find("the test says so"), std::string::npos) << e.what();
    }
  }
  EXPECT_THAT(failures_, ::testing::IsEmpty()) << "its own abort is no failure of a transfer";
}

TEST_P(StagedTransport, AFailedTransferIsReportedAndIsNotThere) {
  Bytes source = random_bytes(rng_, 100), landed(60);
  begin(0);
  send(source);
  begin(1, &landed);
  const auto all_told = [&] {
    const std::lock_guard lock(mutex_);
    return failures_.size() == 2;
  };
  EXPECT_TRUE(eventually(all_told));
  EXPECT_FALSE(end(1).arrived(0, flag));
  EXPECT_FALSE(end(0).sent(1, lane));
  const std::lock_guard lock(mutex_);
  std::vector<int> peers;
  for (const Status& status : failures_) {
    EXPECT_EQ(status.code, ErrorCode::invalid_usage);
    EXPECT_NE(status.message.find("60"), std::string::npos) << status.message;
    peers.push_back(status.rank);
  }
  EXPECT_THAT(peers, ::testing::UnorderedElementsAre(0, 1));
}

// A stream that has not come to its copy when the endpoint goes finds what it copies all the same.
TEST_P(StagedTransport, StagingOutlivesItsReaders) {
  Bytes source = random_bytes(rng_, 3 * Bundle::piece_bytes), landed(source.size(), std::uint8_t{0xEE});
  begin(0);
  send(source);
  begin(1, &landed);
  EXPECT_TRUE(eventually([&] { return end(1).arrived(0, flag); }));
  const auto go = devices_[1].impl().create_signal();
  stream(1).impl().wait(go, {});
  end(1).wait(stream(1), 0, flag);
  ends_.clear();
  const auto poisoned = devices_[1].impl().allocate_host(source.size());  // where staging was, had it been freed
  go->set();
  stream(1).synchronize(soon());
  EXPECT_TRUE(landed == source);
}

TEST(StagedUsage, SaysWhatIsWrong) {
  const Device device = Device::host();
  testing::register_stream_transport();
  const auto message_of = [&](const std::string& name, ErrorCode code) -> std::string {
    try {
      detail::choose_transport(name, device);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code);
      return e.what();
    }
    return "nothing was thrown";
  };
  static const tandem_transport idle = [] {
    tandem_transport t{};
    t.struct_size = sizeof(t);
    t.name = "idle";
    t.capabilities = TANDEM_CAP_NEEDS_PROGRESS;
    return t;
  }();
  detail::add_transport(idle);
  EXPECT_THAT(message_of("idle", ErrorCode::unsupported), ::testing::HasSubstr("nothing here drives it"));
  EXPECT_THAT(message_of("staged:pigeon", ErrorCode::unsupported), ::testing::HasSubstr("'pigeon'"));
  EXPECT_THAT(message_of("staged:stream", ErrorCode::invalid_argument), ::testing::HasSubstr("cannot be staged"));
  EXPECT_FALSE(detail::choose_transport("tcp", device).staged);
  EXPECT_TRUE(detail::choose_transport("staged:tcp", device).staged);
}

// Those that are staged put together what others send one by one: the two do not understand each other.
TEST(StagedUsage, RanksThatAreStagedDoNotMeetRanksThatAreNot) {
  const auto store = HashStore::create(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions options;
      options.rank = r;
      options.size = 2;
      options.store = store->attach(r);
      options.transport = r == 0 ? "tcp" : "staged:tcp";
      try {
        Communicator::create(options);
        ADD_FAILURE() << "they met";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::version_mismatch) << e.what();
        EXPECT_THAT(e.what(), ::testing::HasSubstr("'tcp, staged through host memory'"));
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
// The transport that the others are tested with: that it does as the protocol says, and notices a host that does not.
#include "support/stream_transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "comm/endpoint.hpp"
#include "comm/plugin_host.hpp"
#include "device/impl.hpp"
#include "support/cluster.hpp"

namespace tandem {
namespace {

using detail::Endpoint;
using detail::LaneUse;
using detail::Region;
using detail::WireTransfer;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::soon;
using testing::take_stream_violations;

constexpr LaneUse begin{0, true, false, false};
constexpr LaneUse only_send{0, false, true, true};

// Rank 0 sends to rank 1.
class StreamTransport : public ::testing::Test {
 protected:
  StreamTransport() {
    testing::register_stream_transport();
    take_stream_violations();
    static std::uint8_t number = 0;
    const detail::GroupId group{++number, 77};
    for (int r = 0; r < 2; ++r) {
      ends_.push_back(std::make_shared<detail::PluginEndpoint>(detail::find_transport("stream"), r, 2, group,
                                                               std::map<std::string, std::string>{}, -1,
                                                               [](int, const std::string&) {}));
      streams_.push_back(devices_[static_cast<std::size_t>(r)].create_stream());
      regions_.push_back(ends_.back()->allocate(64));
    }
    sent_ = std::make_shared<std::array<int, 4>>(std::array<int, 4>{1, 2, 3, 4});
  }

  WireTransfer receive(std::uint32_t flag, std::uint64_t bytes = 16) const {
    WireTransfer t{0, true, regions_[1].buffer.data(), bytes, 5};
    t.flag = flag;
    return t;
  }
  WireTransfer send(std::uint32_t flag, std::uint64_t bytes = 16) const {
    WireTransfer t{1, false, sent_->data(), bytes, 5};
    t.region = regions_[1].id;
    t.flag = flag;
    return t;
  }
  void post(std::size_t rank, const std::vector<WireTransfer>& transfers, const LaneUse& use) {
    ends_[rank]->post(streams_[rank], transfers, use);
  }
  void finish() {
    for (const Device& d : devices_) d.synchronize(soon());
  }

  std::array<Device, 2> devices_{Device::host(), Device::host()};
  std::vector<std::shared_ptr<Endpoint>> ends_;
  std::vector<Stream> streams_;
  std::vector<Region> regions_;
  std::shared_ptr<std::array<int, 4>> sent_;
};

TEST_F(StreamTransport, MovesBytesWhenBothHaveBegun) {
  for (int round = 0; round < 3; ++round) {
    post(0, {}, begin);
    post(0, {send(3)}, only_send);
    // The stream comes to the post when it likes; until then what the round before sent is sent.
    const Deadline limit = soon();
    while (ends_[0]->sent(1, 0) && !limit.passed()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    EXPECT_EQ(ends_[0]->sent(1, 0), false) << "the receiver has not begun";
    post(1, {receive(3)}, begin);
    ends_[1]->wait(streams_[1], 0, 3);
    ends_[0]->wait_sent(streams_[0]);
    finish();
    EXPECT_TRUE(ends_[1]->arrived(0, 3));
    EXPECT_FALSE(ends_[1]->arrived(0, 4));
    EXPECT_TRUE(ends_[0]->sent(1, 0));
    EXPECT_EQ(std::memcmp(regions_[1].buffer.data(), sent_->data(), 16), 0);
  }
  EXPECT_THAT(take_stream_violations(), IsEmpty());
}

TEST_F(StreamTransport, AFlagIsRaisedAfterTheLastTransferThatSharesIt) {
  post(1, {receive(0, 8), receive(0, 8)}, begin);
  post(0, {}, begin);
  WireTransfer second = send(0, 8);
  second.offset = 8;
  post(0, {send(0, 8), second}, only_send);
  ends_[1]->wait(streams_[1], 0, 0);
  finish();
  EXPECT_THAT(take_stream_violations(), IsEmpty());
}

TEST_F(StreamTransport, AbortReleasesStreamsThatWait) {
  post(1, {receive(0)}, begin);
  ends_[1]->wait(streams_[1], 0, 0);
  post(0, {}, begin);
  EXPECT_THROW(streams_[1].synchronize(Deadline::after(std::chrono::milliseconds(20))), Error);
  ends_[1]->abort("enough");
  streams_[1].synchronize(soon());
  EXPECT_THROW(post(1, {}, begin), Error);
  EXPECT_THROW(ends_[1]->wait(streams_[1], 0, 0), Error);
}

TEST_F(StreamTransport, NoticesAFlagThatIsResetBeforeItsBytesCame) {
  post(1, {receive(0)}, begin);
  post(1, {receive(0)}, begin);
  finish();
  EXPECT_THAT(take_stream_violations(), Contains(HasSubstr("begins before flag 0 of rank 0 was raised")));
  ends_[1]->abort("");
}

TEST_F(StreamTransport, NoticesAFlagThatIsResetUnderAWaitingStream) {
  const Stream reader = devices_[1].create_stream();
  const auto go = devices_[1].impl().create_signal();
  post(1, {receive(0)}, begin);
  post(0, {}, begin);
  post(0, {send(0)}, only_send);
  streams_[1].synchronize(soon());
  reader.impl().wait(go, {});
  ends_[1]->wait(reader, 0, 0);
  while (!ends_[1]->arrived(0, 0)) std::this_thread::yield();
  post(1, {receive(0)}, begin);
  streams_[1].synchronize(soon());
  EXPECT_THAT(take_stream_violations(), Contains(HasSubstr("resets flag 0 of rank 0 under 1 waiting streams")));
  go->set();
  ends_[1]->abort("");
}

TEST_F(StreamTransport, NoticesAWaitAheadOfTheBeginning) {
  const Stream reader = devices_[1].create_stream();
  const auto go = devices_[1].impl().create_signal();
  streams_[1].impl().wait(go, {});
  post(1, {receive(0)}, begin);
  ends_[1]->wait(reader, 0, 0);
  std::vector<std::string> seen;
  for (const Deadline limit = soon(); seen.empty() && !limit.passed();) seen = take_stream_violations();
  EXPECT_THAT(seen, Contains(HasSubstr("when 0 has begun")));
  ends_[1]->abort("");
  go->set();
}

TEST_F(StreamTransport, NoticesSendsThatDoNotFit) {
  const auto try_send = [&](const WireTransfer& transfer, const LaneUse& use) {
    post(1, {receive(0)}, begin);
    post(0, {}, begin);
    post(0, {transfer}, use);
    finish();
    // For the next one.
    post(0, {send(0)}, {0, false, !use.first, true});
    ends_[1]->wait(streams_[1], 0, 0);
    finish();
    return take_stream_violations();
  };
  WireTransfer other = send(0);
  other.tag = 6;
  EXPECT_THAT(try_send(other, {0, false, true, false}), Contains(HasSubstr("do not match")));
  other = send(0);
  other.offset = 60;
  EXPECT_THAT(try_send(other, {0, false, true, false}), Contains(HasSubstr("past the region")));
  EXPECT_THAT(try_send(send(9), {0, false, true, false}), Contains(HasSubstr("nothing is received there")));
  EXPECT_THAT(try_send(send(0), {0, false, false, false}),
              Contains(HasSubstr("without having waited for the receiver")));
}

}  // namespace
}  // namespace tandem

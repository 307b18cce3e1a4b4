// SPDX-License-Identifier: Apache-2.0
// What of the transport nccl needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/random.hpp"
#include "tandem/error.hpp"
#include "transports/nccl/address.hpp"
#include "transports/nccl/library.hpp"
#include "transports/nccl/rounds.hpp"

namespace tandem::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Call>
std::string refusal(ErrorCode code, const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string refusal_to_load(const std::string& name) {
  return refusal(ErrorCode::unsupported, [&] { Library::load(name); });
}

TEST(NcclLibrary, SaysWhyOneCannotBeUsed) {
  EXPECT_THAT(refusal_to_load("/nonexistent/libnccl.so.2"),
              AllOf(HasSubstr("/nonexistent/libnccl.so.2"), HasSubstr("TANDEM_NCCL_LIBRARY")));
  EXPECT_THAT(refusal_to_load("libm.so.6"), HasSubstr("libm.so.6 has no ncclGetVersion"));
  ::setenv("TANDEM_FAKE_NCCL_VERSION", "21803", 1);
  EXPECT_THAT(refusal_to_load(FAKE_NCCL), HasSubstr("is version 2.18.3, and 2.19.0 is the oldest"));
  ::unsetenv("TANDEM_FAKE_NCCL_VERSION");
}

TEST(NcclLibrary, FindsEverythingInOneThatWillDo) {
  const Library library = Library::load(FAKE_NCCL);
  EXPECT_EQ(library.version, NCCL_VERSION_CODE);
  EXPECT_THAT(library.path, HasSubstr("fake_nccl"));
#define EXPECT_FOUND(name) EXPECT_NE(library.name, nullptr);
  TANDEM_NCCL_FUNCTIONS(EXPECT_FOUND)
#undef EXPECT_FOUND
  EXPECT_NE(library.ncclCommRevoke, nullptr);
  EXPECT_EQ(library.ncclCommWindowRegister, nullptr) << "the fake has none";
}

TEST(NcclLibrary, TheOneOfTheProcessIsWhatTheEnvironmentNames) {
  ::setenv("TANDEM_NCCL_LIBRARY", "/nonexistent/libnccl.so.2", 1);
  EXPECT_THAT(why_unavailable(), HasSubstr("/nonexistent/libnccl.so.2"));
  ::setenv("TANDEM_NCCL_LIBRARY", FAKE_NCCL, 1);
  EXPECT_EQ(why_unavailable(), "") << "a later one may be found";
  EXPECT_THAT(library().path, HasSubstr("fake_nccl"));
  ::unsetenv("TANDEM_NCCL_LIBRARY");
}

TEST(NcclLibrary, VersionsAreWrittenAsPeopleDo) {
  EXPECT_EQ(version_text(22809), "2.28.9");
  EXPECT_EQ(version_text(21900), "2.19.0");
}

tandem_transfer transfer(int peer, int direction, std::uint64_t round, std::uint64_t tag, std::uint64_t bytes = 4) {
  tandem_transfer t{};
  t.struct_size = sizeof(t);
  t.peer = peer;
  t.direction = direction;
  t.bytes = bytes;
  t.tag = tag;
  t.round = round;
  t.flag = static_cast<std::uint32_t>(tag);
  return t;
}

// Two ends of a pair that have posted the same messages in orders of their own, as a gather's receives and sends are.
// What they have in common is that messages of one tag stand in one order, and have one round.
TEST(NcclRounds, BothEndsOfAPairListTheirMessagesInOneOrder) {
  std::mt19937_64 rng = testing::test_rng();
  for (int n = 0; n < 200; ++n) {
    std::vector<std::uint64_t> tags(1 + rng() % 30);
    for (std::uint64_t& tag : tags) tag = rng() % 8;
    const auto listed_by = [&](int direction) {
      std::shuffle(tags.begin(), tags.end(), rng);
      std::map<std::uint64_t, std::uint64_t> turns;
      std::vector<tandem_transfer> posted;
      for (const std::uint64_t tag : tags)
        posted.push_back(transfer(1, direction, tag % 3, tag, tag * 100 + ++turns[tag]));
      std::vector<std::pair<std::uint64_t, std::uint64_t>> messages;
      for (const Round& round : in_rounds(posted)) {
        for (const tandem_transfer& t : round.transfers) messages.emplace_back(round.number, t.bytes);
      }
      return messages;
    };
    const auto sends = listed_by(TANDEM_SEND);
    ASSERT_EQ(sends, listed_by(TANDEM_RECEIVE));
    ASSERT_EQ(sends.size(), tags.size());
  }
}

TEST(NcclRounds, AscendAndHoldWhatBelongsTogether) {
  const std::vector<Round> rounds =
      in_rounds({transfer(1, TANDEM_RECEIVE, 7, 1), transfer(1, TANDEM_RECEIVE, 2, 2), transfer(2, TANDEM_SEND, 7, 3),
                 transfer(1, TANDEM_RECEIVE, 2, 2), transfer(2, TANDEM_SEND, 2, 4)});
  ASSERT_EQ(rounds.size(), 2U);
  EXPECT_EQ(rounds[0].number, 2U);
  EXPECT_EQ(rounds[0].transfers.size(), 3U);
  EXPECT_EQ(rounds[0].arrivals, (std::vector<std::pair<int, std::uint32_t>>{{1, 2}})) << "a shared flag counts once";
  EXPECT_EQ(rounds[1].number, 7U);
  EXPECT_EQ(rounds[1].transfers.size(), 2U);
  EXPECT_EQ(rounds[1].arrivals, (std::vector<std::pair<int, std::uint32_t>>{{1, 1}}));
}

TEST(NcclRounds, NothingIsMovedWhereThereIsNoByteButItArrives) {
  const std::vector<Round> rounds =
      in_rounds({transfer(1, TANDEM_RECEIVE, 3, 5, 0), transfer(1, TANDEM_SEND, 3, 6, 0)});
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_TRUE(rounds[0].transfers.empty());
  EXPECT_EQ(rounds[0].arrivals, (std::vector<std::pair<int, std::uint32_t>>{{1, 5}}));
  EXPECT_TRUE(in_rounds({}).empty());
}

Address address(std::uint8_t gpu, int version = 22809) {
  Address a;
  a.gpu.fill(gpu);
  a.version = version;
  return a;
}

TEST(NcclAddress, SurvivesItsJourney) {
  Address sent = address(7);
  sent.unique_id = std::string("id\0with zero", 12);
  const Address received = Address::decode(sent.encode());
  EXPECT_EQ(received.gpu, sent.gpu);
  EXPECT_EQ(received.version, sent.version);
  EXPECT_EQ(received.unique_id, sent.unique_id);
  const std::string bytes = sent.encode();
  for (std::size_t n = 0; n < bytes.size(); ++n)
    refusal(ErrorCode::invalid_argument, [&] { Address::decode(bytes.substr(0, n)); });
}

TEST(NcclAddress, RanksOnOneGpuAreNamed) {
  const std::vector<Address> apart{address(1), address(2), address(3)};
  EXPECT_NO_THROW(check_together(apart, false));
  const std::vector<Address> shared{address(1), address(0xab), address(3), address(0xab)};
  EXPECT_THAT(refusal(ErrorCode::unsupported, [&] { check_together(shared, false); }),
              AllOf(HasSubstr("ranks 1 and 3"), HasSubstr("GPU-abababab-abab-abab-abab-abababababab")));
  EXPECT_NO_THROW(check_together(shared, true));
}

TEST(NcclAddress, TwoVersionsAreNamed) {
  const std::vector<Address> mixed{address(1), address(2, 22703)};
  EXPECT_THAT(refusal(ErrorCode::version_mismatch, [&] { check_together(mixed, true); }),
              AllOf(HasSubstr("rank 0 has NCCL 2.28.9"), HasSubstr("rank 1 has 2.27.3")));
}

}  // namespace
}  // namespace tandem::nccl

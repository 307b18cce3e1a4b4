// SPDX-License-Identifier: Apache-2.0
// Ranks that believe in jobs of different sizes, at the store. Nothing here waits for a while to see that nothing
// happens: the server decides about rank 2 after it has decided about all that came before, and says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/bootstrap/worlds.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::in_ms;
using testing::NoticeLog;
using testing::soon;
using testing::TcpWorld;
using Kind = Store::Notice::Kind;

class Sizes : public ::testing::Test {
 protected:
  static constexpr int size = 3;

  Sizes() : zero_(w_.join(0)), handle_(zero_->listen(log_.listener())) {}

  Error refused(int rank, int believed) {
    TcpStoreOptions options = w_.options_of(rank);
    options.size = believed;
    return error_of(ErrorCode::invalid_argument, [&] { connect_store(options, soon()); });
  }
  // Whatever was in doubt before is decided when this returns. Nobody may have been told of another rank than 2.
  void expect_only_rank_2_is_lost() {
    refused(2, size + 1);
    log_.wait_for(Kind::peer_lost, 2);
    EXPECT_EQ(log_.all().size(), 1U);
  }

  TcpWorld w_{size};
  NoticeLog log_;
  std::shared_ptr<Store> zero_;
  std::shared_ptr<void> handle_;
};

TEST_F(Sizes, TheRankIsToldAndSoonTheOthersIfItDoesNotComeBack) {
  const auto begin = Deadline::Clock::now();
  const Error e = refused(1, 4);
  const auto conflict = HasSubstr("rank 1 was started for a job of 4 ranks, the store server for one of 3");
  EXPECT_THAT(e.what(), conflict);
  EXPECT_EQ(e.rank(), 1);
  EXPECT_THAT(log_.wait_for(Kind::peer_lost, 1).reason, conflict);
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(5));
  // Those that come later hear it too, and the rank itself why it is out.
  const auto two = w_.join(2);
  NoticeLog later;
  const auto handle = two->listen(later.listener());
  EXPECT_THAT(later.wait_for(Kind::peer_lost, 1).reason, conflict);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { w_.join(1); }).what(),
              AllOf(HasSubstr("rank 1 comes too late"), conflict));
  two->leave(soon());
  zero_->leave(soon());
  EXPECT_TRUE(w_.server().wait_all_left(soon()));
}

TEST_F(Sizes, AStrayHarmsNobodyIfTheRankComes) {
  refused(1, 4);
  const auto one = w_.join(1);
  expect_only_rank_2_is_lost();
  one->set("key", "value", soon());
  EXPECT_EQ(zero_->get("key", soon()), "value");
}

TEST_F(Sizes, AStrayInThePlaceOfARankThatIsHereHarmsNobody) {
  const auto one = w_.join(1);
  refused(1, 4);
  expect_only_rank_2_is_lost();
}

TEST_F(Sizes, AStrayThatNobodyWaitsForHarmsNobody) {
  for (const int rank : {3, 6}) refused(rank, 7);
  expect_only_rank_2_is_lost();
}

TEST_F(Sizes, TheServerMayEndWhileARankIsInDoubt) { refused(1, 4); }

TEST_F(Sizes, AStrangerOfAnotherSizeIsDroppedCountedAndHarmsNobody) {
  TcpStoreOptions stranger = w_.options_of(1);
  stranger.token = random_job_token();
  stranger.size = 4;
  error_of(ErrorCode::timeout, [&] { connect_store(stranger, in_ms(100)); });
  EXPECT_GT(w_.server().dropped_hellos(), 0U);
  expect_only_rank_2_is_lost();
}

}  // namespace
}  // namespace tandem

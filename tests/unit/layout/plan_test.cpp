// SPDX-License-Identifier: Apache-2.0
#include "tandem/plan.hpp"

#include <set>

#include "support/random.hpp"
#include "unit/layout/plan_oracle.hpp"
#include "unit/layout/rejected.hpp"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Offsets;
using testing::texts;

std::vector<Plan> all_plans(const SequenceLayout& layout, const PlanOptions& options = {}) {
  std::vector<Plan> plans;
  for (int r = 0; r < layout.ranks(); ++r) plans.emplace_back(layout, r, options);
  return plans;
}

std::string text(const IndexerStep& step) {
  std::string s = "rows";
  for (const RowRange& r : step.rows) s += fmt::format(" [{},{})", r.begin, r.end);
  s += " keys";
  for (const RowRange& r : step.keys) s += fmt::format(" [{},{})", r.begin, r.end);
  return s + fmt::format(" chunks {}{}{}", step.chunks, step.first ? " first" : "", step.last ? " last" : "");
}

std::vector<std::string> step_texts(const Plan& plan) {
  std::vector<std::string> all;
  for (const IndexerStep& step : plan.indexer_steps()) all.push_back(text(step));
  return all;
}

// 16 tokens over 2 ranks: rank 0 holds [0,4) and [12,16), rank 1 holds [4,12).
class SmallPlan : public ::testing::Test {
 protected:
  SequenceLayout layout_ = SequenceLayout::zigzag(Offsets{0, 16}, 2);
  PlanOptions options_{.chunk_tokens = 4, .carry_rows = 2, .block_rows = 3, .max_runs = 16};
  Plan zero_{layout_, 0, options_};
  Plan one_{layout_, 1, options_};
};

TEST_F(SmallPlan, NeededRows) {
  EXPECT_EQ(zero_.landed_rows(), 16);
  EXPECT_EQ(one_.landed_rows(), 12);
  EXPECT_EQ(one_.to_global(11), 11);
  EXPECT_EQ(one_.to_landed(12), -1);
  EXPECT_THAT(zero_.key_begin(), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(zero_.key_end(), ElementsAre(1, 2, 3, 4, 13, 14, 15, 16));
  EXPECT_THAT(one_.key_end(), ElementsAre(5, 6, 7, 8, 9, 10, 11, 12));
}

TEST_F(SmallPlan, Transfers) {
  EXPECT_THAT(texts(zero_.arrivals()),
              ElementsAre("chunk 0 peer 0 step 0 rows 4: 0->0x4", "chunk 1 peer 0 step 0 rows 4: 4->12x4",
                          "chunk 2 peer 1 step 1 rows 4: 0->4x4", "chunk 3 peer 1 step 1 rows 4: 4->8x4"));
  EXPECT_THAT(texts(one_.arrivals()),
              ElementsAre("chunk 2 peer 1 step 0 rows 4: 0->4x4", "chunk 3 peer 1 step 0 rows 4: 4->8x4",
                          "chunk 0 peer 0 step 1 rows 4: 0->0x4"));
  EXPECT_THAT(texts(zero_.departures()), ElementsAre("chunk 0 peer 1 step 1 rows 4: 0->0x4"));
  EXPECT_THAT(texts(one_.departures()),
              ElementsAre("chunk 2 peer 0 step 1 rows 4: 0->4x4", "chunk 3 peer 0 step 1 rows 4: 4->8x4"));
  EXPECT_EQ(zero_.received_rows(), 8);
  EXPECT_EQ(zero_.sent_rows(), 4);
  EXPECT_EQ(one_.arrival(1), nullptr);
  EXPECT_EQ(one_.arrival(0)->peer, 0);
}

TEST_F(SmallPlan, IndexerSteps) {
  EXPECT_THAT(step_texts(zero_), ElementsAre("rows [0,4) keys [0,4) chunks [0] first last",
                                             "rows [6,8) keys [0,4) [12,16) chunks [0, 1] first",
                                             "rows [6,8) keys [4,12) chunks [2, 3] last",
                                             "rows [4,6) keys [0,14) chunks [0, 1, 2, 3] first last"));
  EXPECT_THAT(step_texts(one_),
              ElementsAre("rows [6,8) keys [4,12) chunks [2, 3] first", "rows [6,8) keys [0,4) chunks [0] last",
                          "rows [0,6) keys [0,10) chunks [2, 3, 0] first last"));
}

TEST_F(SmallPlan, BlocksAndFinality) {
  EXPECT_THAT(zero_.query_blocks(), ElementsAre(RowRange{5, 8}, RowRange{2, 5}, RowRange{0, 2}));
  EXPECT_THAT(zero_.final_after(0), IsEmpty());
  EXPECT_THAT(zero_.final_after(1), ElementsAre(1, 2, 3));
  EXPECT_THAT(zero_.final_after(2), ElementsAre(0));
}

TEST(PlanChunks, LargeSlicesDoNotShareAndShortDocumentsDo) {
  const auto sizes = [](const SequenceLayout& layout, std::int64_t chunk_tokens) {
    const Plan plan(layout, 0, {.chunk_tokens = chunk_tokens});
    std::vector<std::int64_t> all;
    for (const Chunk& c : plan.chunks_of(0)) all.push_back(c.rows);
    return all;
  };
  const SequenceLayout one = SequenceLayout::zigzag(Offsets{0, 40}, 2);  // rank 0: [0,10) and [30,40)
  EXPECT_THAT(sizes(one, 4), ElementsAre(4, 4, 2, 4, 4, 2));
  EXPECT_THAT(sizes(one, 6), ElementsAre(6, 4, 6, 4));
  EXPECT_THAT(sizes(one, 9), ElementsAre(9, 9, 2));
  EXPECT_THAT(sizes(one, 20), ElementsAre(10, 10));
  EXPECT_THAT(sizes(one, 21), ElementsAre(20));
  const SequenceLayout many = SequenceLayout::zigzag(Offsets{0, 4, 8, 12, 16, 20}, 2);  // ten segments, some touching
  EXPECT_THAT(sizes(many, 8), ElementsAre(5, 4, 1));
}

TEST(PlanTransfers, ManyRunsArePacked) {
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 8, 16, 24}, 4);
  const Plan loose(layout, 3, {.max_runs = 3});
  const Plan packed(layout, 3, {.max_runs = 2});
  // Rank 3 holds rows 3 and 4 of each document, so it needs 0 to 4; rank 0 holds 0 and 7.
  EXPECT_THAT(texts(loose.arrivals()), ElementsAre("chunk 3 peer 3 step 0 rows 6: 0->3x2 2->8x2 4->13x2",
                                                   "chunk 2 peer 2 step 1 rows 3: 0->2x1 2->7x1 4->12x1",
                                                   "chunk 1 peer 1 step 2 rows 3: 0->1x1 2->6x1 4->11x1",
                                                   "chunk 0 peer 0 step 3 rows 3: 0->0x1 2->5x1 4->10x1"));
  for (const ChunkTransfer& t : packed.arrivals()) EXPECT_TRUE(t.packed);
}

TEST(PlanSteps, EarlySlicesDoNotWaitForTheLastRank) {
  const Plan plan(SequenceLayout::zigzag(Offsets{0, 1600}, 8), 3, {.chunk_tokens = 100, .carry_rows = 10});
  // Slice 3 sees slices 0 to 3, brought by ranks 2, 1 and 0; slice 12 sees the rest, too.
  EXPECT_THAT(step_texts(plan), ElementsAre("rows [190,200) keys [300,400) [1200,1300) chunks [6, 7] first",
                                            "rows [0,100) keys [0,400) chunks [6, 4, 2, 0] first last",
                                            "rows [190,200) keys [0,300) [400,1200) chunks "
                                            "[4, 2, 0, 14, 15, 12, 13, 10, 11, 8, 9] last",
                                            "rows [100,190) keys [0,1290) chunks "
                                            "[6, 7, 4, 2, 0, 14, 15, 12, 13, 10, 11, 8, 9] first last"));
}

TEST(PlanSteps, PadRowsAreWrittenWithoutKeys) {
  const Plan plan(SequenceLayout::contiguous(Offsets{0, 2}, 2, Offsets{0, 2, 8}), 1);
  EXPECT_EQ(plan.landed_rows(), 0);
  EXPECT_THAT(plan.arrivals(), IsEmpty());
  EXPECT_THAT(step_texts(plan), ElementsAre("rows [0,4) keys chunks [] first last"));
  EXPECT_THAT(plan.query_blocks(), IsEmpty()) << "they ask nothing";
}

TEST(PlanSteps, NothingToDoWithoutRows) {
  const Plan plan(SequenceLayout::contiguous(Offsets{0, 1}, 2), 0);
  EXPECT_EQ(plan.rows(), 0);
  EXPECT_THAT(plan.indexer_steps(), IsEmpty());
  EXPECT_THAT(plan.query_blocks(), IsEmpty());
  EXPECT_THAT(plan.arrivals(), IsEmpty());
  const Plan empty(SequenceLayout::zigzag(Offsets{0}, 1), 0);
  EXPECT_THAT(empty.chunks(), IsEmpty());
  EXPECT_THAT(empty.indexer_steps(), IsEmpty());
}

TEST(PlanTraffic, OneContiguousDocumentMovesHalfOfAFullGather) {
  const int ranks = 4;
  const std::int64_t length = 4096;
  std::int64_t received = 0;
  std::int64_t sent = 0;
  for (const Plan& plan : all_plans(SequenceLayout::contiguous(Offsets{0, length}, ranks))) {
    received += plan.received_rows();
    sent += plan.sent_rows();
  }
  EXPECT_EQ(received, length * (ranks - 1) / 2);
  EXPECT_EQ(sent, received);
}

TEST(PlanTraffic, DocumentsInsideShardsMoveNothing) {
  for (const Plan& plan :
       all_plans(SequenceLayout::contiguous(Offsets{0, 100, 256, 300, 512, 512, 768, 1000, 1024}, 4))) {
    EXPECT_EQ(plan.received_rows(), 0);
    EXPECT_EQ(plan.sent_rows(), 0);
    EXPECT_THAT(plan.departures(), IsEmpty());
    EXPECT_EQ(plan.indexer_steps().size(), 1U);
  }
  const Plan alone(SequenceLayout::zigzag(Offsets{0, 100, 228}, 1), 0);
  EXPECT_EQ(alone.received_rows(), 0);
  EXPECT_EQ(alone.indexer_steps().size(), 1U);
  EXPECT_EQ(alone.landed_rows(), 228);
}

/// What `sender` believes to send to `receiver`, and what that one expects, with the other's rank and the step left
/// out.
std::vector<std::string> between(std::span<const ChunkTransfer> transfers, int peer) {
  std::vector<std::string> all;
  for (ChunkTransfer t : transfers) {
    if (t.peer != peer) continue;
    t.peer = -1;
    all.push_back(testing::text(t));
  }
  return all;
}

TEST(PlanTraffic, DeparturesAreTheArrivalsOfTheOther) {
  auto rng = testing::test_rng(3);
  for (const Partition partition : {Partition::contiguous, Partition::zigzag}) {
    testing::Batch batch{.partition = partition, .ranks = 7, .cu = {0}, .padded = {0}, .segments = {}, .keys_only = {}};
    for (int d = 0; d < 20; ++d) {
      batch.cu.push_back(batch.cu.back() + testing::draw(rng, 0, 300));
      batch.padded.push_back(batch.padded.back() + batch.cu.back() - batch.cu[batch.cu.size() - 2] +
                             testing::draw(rng, 0, 9));
    }
    SCOPED_TRACE(batch.text());
    const auto plans = all_plans(batch.layout(), {.chunk_tokens = 64, .max_runs = 3});
    for (const Plan& sender : plans) {
      for (const Plan& receiver : plans) {
        if (sender.rank() == receiver.rank()) continue;
        ASSERT_EQ(between(sender.departures(), receiver.rank()), between(receiver.arrivals(), sender.rank()));
      }
    }
  }
}

TEST(PlanFinality, ZigzagFinishesMostChunksInTheFirstHalf) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    const std::int64_t slice = 512;
    std::int64_t halfway = 0;
    std::int64_t all = 0;
    for (const Plan& plan : all_plans(SequenceLayout::zigzag(Offsets{0, slice * 2 * ranks}, ranks),
                                      {.chunk_tokens = 64, .block_rows = 64})) {
      for (std::size_t b = 0; b < plan.query_blocks().size(); ++b) {
        const std::int64_t count = std::ssize(plan.final_after(b));
        all += count;
        if (b < plan.query_blocks().size() / 2) halfway += count;
      }
    }
    const double share = static_cast<double>(halfway) / static_cast<double>(all);
    RecordProperty(fmt::format("share_final_halfway_{}_ranks", ranks), fmt::format("{:.3f}", share));
    EXPECT_GT(share, 0.55) << ranks << " ranks";
    EXPECT_LT(share, 0.67) << ranks << " ranks";
  }
}

// Quadratic work anywhere would take minutes here.
TEST(PlanSize, AMillionTokensOver64Ranks) {
  const std::int64_t tokens = 1 << 20;
  const Plan one(SequenceLayout::zigzag(Offsets{0, tokens}, 64), 31);
  EXPECT_EQ(one.rows(), tokens / 64);
  EXPECT_EQ(one.landed_rows(), tokens - 31 * (tokens / 128));
  Offsets cu{0};
  while (cu.back() < tokens) cu.push_back(cu.back() + 256);
  const Plan many(SequenceLayout::zigzag(cu, 64), 31);
  EXPECT_EQ(many.rows(), tokens / 64);
  EXPECT_GT(many.departures().size(), 0U);
}

TEST(Plan, Rejects) {
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 16}, 2);
  EXPECT_REJECTED(Plan(layout, 2), "rank 2 is outside the layout's 2 ranks");
  EXPECT_REJECTED(Plan(layout, -1), "rank -1 is outside the layout's 2 ranks");
  EXPECT_REJECTED(Plan(layout, 0, {.chunk_tokens = 0}), "chunk_tokens = 0 is below 1");
  EXPECT_REJECTED(Plan(layout, 0, {.carry_rows = 0}), "carry_rows = 0 is below 1");
  EXPECT_REJECTED(Plan(layout, 0, {.block_rows = -4}), "block_rows = -4 is below 1");
  EXPECT_REJECTED(Plan(layout, 0, {.max_runs = 0}), "max_runs = 0 is below 1");
  const Plan plan(layout, 1);
  EXPECT_REJECTED(plan.to_global(12), "landed row 12 is outside the 12 of rank 1");
  EXPECT_REJECTED(plan.to_global(-1), "landed row -1 is outside");
  EXPECT_REJECTED(plan.to_landed(16), "position 16 is outside the 16 rows");
  EXPECT_REJECTED(plan.to_landed(-1), "position -1 is outside");
  EXPECT_REJECTED(plan.chunks_of(2), "rank 2 is outside");
  EXPECT_REJECTED(plan.arrival(-1), "chunk -1 is outside the plan's 2 chunks");
  EXPECT_REJECTED(plan.arrival(2), "chunk 2 is outside the plan's 2 chunks");
  EXPECT_REJECTED(plan.final_after(1), "query block 1 is outside the plan's 1 blocks");
}

TEST(Plan, ExtremeOptionsAreLegal) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 16, 23}, 2);
  const Plan plan(layout, 0, {.chunk_tokens = most, .carry_rows = most, .block_rows = most, .max_runs = most});
  EXPECT_EQ(plan.chunks().size(), 2U);
  EXPECT_EQ(plan.query_blocks().size(), 1U);
  EXPECT_EQ(plan.final_after(0).size(), 2U);
}

TEST(PlanHash, IsOfLayoutAndOptionsNotOfRank) {
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 16}, 2);
  const PlanOptions options;
  const auto hash = [&](const PlanOptions& o) { return Plan(layout, 0, o).hash(); };
  std::set<std::uint64_t> hashes{hash(options), Plan(SequenceLayout::zigzag(Offsets{0, 17}, 2), 0).hash()};
  hashes.insert(hash({.chunk_tokens = options.chunk_tokens + 1}));
  hashes.insert(hash({.carry_rows = options.carry_rows + 1}));
  hashes.insert(hash({.block_rows = options.block_rows + 1}));
  hashes.insert(hash({.max_runs = options.max_runs + 1}));
  EXPECT_EQ(hashes.size(), 6U);
  EXPECT_EQ(Plan(layout, 1).hash(), hash(options));
  EXPECT_EQ(Plan(layout, 1).hash(), 14141154059143896949ULL);
}

}  // namespace
}  // namespace tandem

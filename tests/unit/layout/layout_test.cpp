// SPDX-License-Identifier: Apache-2.0
#include "tandem/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "layout/layout_data.hpp"
#include "support/random.hpp"
#include "unit/layout/batch.hpp"
#include "unit/layout/rejected.hpp"

namespace tandem {
namespace {

using testing::Batch;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Offsets;
using testing::Segments;

std::vector<std::int64_t> positions(const SequenceLayout& layout, int rank) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < layout.rows(rank); ++i) result.push_back(layout.global_position(rank, i));
  return result;
}

// Position lists that Megatron-Core gives its ranks.
TEST(Zigzag, AgreesWithMegatronOnOneSequence) {
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 16}, 4);
  EXPECT_THAT(positions(layout, 0), ElementsAre(0, 1, 14, 15));
  EXPECT_THAT(positions(layout, 1), ElementsAre(2, 3, 12, 13));
  EXPECT_THAT(positions(layout, 2), ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(positions(layout, 3), ElementsAre(6, 7, 8, 9));
}

TEST(Zigzag, AgreesWithMegatronOnPackedDocuments) {
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 4, 16}, 2);
  EXPECT_THAT(positions(layout, 0), ElementsAre(0, 3, 4, 5, 6, 13, 14, 15));
  EXPECT_THAT(positions(layout, 1), ElementsAre(1, 2, 7, 8, 9, 10, 11, 12));
}

TEST(Zigzag, AgreesWithMegatronOnPaddedDocuments) {
  // Lengths 3 and 5, each padded to a multiple of 2 R = 4.
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 3, 8}, 2, Offsets{0, 4, 12});
  EXPECT_THAT(positions(layout, 0), ElementsAre(0, 3, 4, 5, 10, 11));
  EXPECT_THAT(positions(layout, 1), ElementsAre(1, 2, 6, 7, 8, 9));
  EXPECT_FALSE(layout.is_real(3));
  EXPECT_EQ(layout.visible(3), RowRange{});
  EXPECT_EQ(layout.visible(8), (RowRange{4, 9}));
  EXPECT_EQ(layout.visible(9), RowRange{});
}

TEST(Zigzag, TailIsCutLikeADocument) {
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 4}, 2, Offsets{0, 4, 12});
  EXPECT_THAT(layout.segments(0), ElementsAre(RowRange{0, 1}, RowRange{3, 6}, RowRange{10, 12}));
  EXPECT_THAT(layout.segments(1), ElementsAre(RowRange{1, 3}, RowRange{6, 10}));
  EXPECT_THAT(layout.cu_seqlens_padded(), ElementsAre(0, 4, 12));
  EXPECT_EQ(layout.documents(), 1);
  EXPECT_EQ(layout.document(11), 1);
  EXPECT_FALSE(layout.is_real(4));
}

TEST(Zigzag, OddLengthsAreCutByFloor) {
  // Slices of 5 rows over 2 ranks: [0,1) [1,2) [2,3) [3,5).
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 5}, 2);
  EXPECT_THAT(positions(layout, 0), ElementsAre(0, 3, 4));
  EXPECT_THAT(positions(layout, 1), ElementsAre(1, 2));
}

TEST(Contiguous, CutsThePaddedStream) {
  const SequenceLayout layout = SequenceLayout::contiguous(Offsets{0, 3, 7}, 3, Offsets{0, 4, 10});
  EXPECT_THAT(layout.segments(0), ElementsAre(RowRange{0, 3}));
  EXPECT_THAT(layout.segments(1), ElementsAre(RowRange{3, 6}));
  EXPECT_THAT(layout.segments(2), ElementsAre(RowRange{6, 10}));
  EXPECT_EQ(layout.total_rows(), 10);
  EXPECT_EQ(layout.real_rows(), 7);
  EXPECT_EQ(layout.visible(5), (RowRange{4, 6}));
}

TEST(Contiguous, FewerTokensThanRanks) {
  const SequenceLayout layout = SequenceLayout::contiguous(Offsets{0, 2}, 5);
  EXPECT_EQ(layout.rows(0) + layout.rows(1) + layout.rows(2) + layout.rows(3) + layout.rows(4), 2);
  EXPECT_EQ(layout.owner(0), 2);
  EXPECT_EQ(layout.owner(1), 4);
  EXPECT_THAT(layout.segments(0), IsEmpty());
}

TEST(Layout, NoRowsAtAll) {
  for (const SequenceLayout& layout :
       {SequenceLayout::contiguous(Offsets{0}, 3), SequenceLayout::zigzag(Offsets{0, 0, 0}, 3),
        SequenceLayout::from_segments(Offsets{0}, Segments(3))}) {
    EXPECT_EQ(layout.total_rows(), 0);
    EXPECT_EQ(layout.rows(2), 0);
    EXPECT_THAT(layout.segments(1), IsEmpty());
    EXPECT_REJECTED(layout.owner(0), "position 0 is outside the 0 rows");
  }
}

TEST(ExplicitSegments, UnevenAndEmptyShards) {
  const SequenceLayout layout =
      SequenceLayout::from_segments(Offsets{0, 6}, Segments{{{0, 1}, {1, 1}, {1, 2}, {5, 6}}, {}, {{2, 5}}});
  EXPECT_THAT(layout.segments(0), ElementsAre(RowRange{0, 2}, RowRange{5, 6}));
  EXPECT_EQ(layout.rows(1), 0);
  EXPECT_EQ(layout.local_row(5), 2);
  EXPECT_EQ(layout.global_position(2, 1), 3);
}

TEST(Layout, SlicesOfHugeLengthsDoNotOverflow) {
  const std::int64_t length = (std::int64_t{1} << 40) + 12345;
  const int ranks = 1 << 12;
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, length}, ranks);
  std::int64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += layout.rows(r);
  EXPECT_EQ(sum, length);
  // floor(4097 * length / 8192) = 2^39 + 2^27 + floor(4097 * 12345 / 8192)
  EXPECT_EQ(layout.segments(ranks - 2)[1].begin, (std::int64_t{1} << 39) + (std::int64_t{1} << 27) + 6174);
  const std::int64_t longest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t most = std::int64_t{2} * std::numeric_limits<int>::max();
  EXPECT_EQ(detail::slice_begin(longest, most, most), longest);
  EXPECT_EQ(detail::slice_begin(longest, most / 2, most), longest / 2);
}

TEST(Layout, RejectsBadOffsets) {
  EXPECT_REJECTED(SequenceLayout::zigzag(Offsets{}, 2), "cu_seqlens is empty");
  EXPECT_REJECTED(SequenceLayout::zigzag(Offsets{1, 4}, 2), "cu_seqlens[0] = 1 is not 0");
  EXPECT_REJECTED(SequenceLayout::contiguous(Offsets{0, 3, 7, 5}, 2), "cu_seqlens[3] = 5 is below cu_seqlens[2] = 7");
  EXPECT_REJECTED(SequenceLayout::contiguous(Offsets{0, -3}, 2), "cu_seqlens[1] = -3 is below cu_seqlens[0] = 0");
  EXPECT_REJECTED(SequenceLayout::contiguous(Offsets{-1, 3}, 2), "cu_seqlens[0] = -1 is not 0");
}

TEST(Layout, RejectsBadPaddedOffsets) {
  const Offsets cu{0, 3, 7};
  EXPECT_REJECTED(SequenceLayout::zigzag(cu, 2, Offsets{0, 4}), "cu_seqlens_padded has 2 entries");
  EXPECT_REJECTED(SequenceLayout::zigzag(cu, 2, Offsets{0, 4, 8, 9, 9}), "cu_seqlens_padded has 5 entries");
  EXPECT_REJECTED(SequenceLayout::zigzag(cu, 2, Offsets{2, 4, 8}), "cu_seqlens_padded[0] = 2 is not 0");
  EXPECT_REJECTED(SequenceLayout::zigzag(cu, 2, Offsets{0, 4, 3}),
                  "cu_seqlens_padded[2] = 3 is below cu_seqlens_padded[1] = 4");
  EXPECT_REJECTED(SequenceLayout::zigzag(cu, 2, Offsets{0, 4, 8, 7}),
                  "cu_seqlens_padded[3] = 7 is below cu_seqlens_padded[2] = 8");
  EXPECT_REJECTED(SequenceLayout::zigzag(cu, 2, Offsets{0, 4, 7}),
                  "cu_seqlens_padded[2] = 7 leaves 3 rows for document 1 of 4 tokens");
}

TEST(Layout, RejectsBadRanksAndSegments) {
  const Offsets cu{0, 8};
  EXPECT_REJECTED(SequenceLayout::zigzag(cu, 0), "ranks = 0 is below 1");
  EXPECT_REJECTED(SequenceLayout::contiguous(cu, -2), "ranks = -2 is below 1");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {}), "segments is empty");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{0, 3}}, {{4, 8}}}), "position 3 is in no rank's segments");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{1, 3}}, {{3, 8}}}), "position 0 is in no rank's segments");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{0, 3}}, {{3, 6}}}), "position 6 is in no rank's segments");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{}, {}}), "position 0 is in no rank's segments");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{0, 5}}, {{3, 8}}}),
                  "position 3 is in the segments of rank 0 and of rank 1");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{0, 8}}, {{2, 3}, {5, 6}}}),
                  "position 2 is in the segments of rank 0 and of rank 1");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{4, 8}, {0, 4}}}),
                  "segments[0][1] = [0, 4) begins before the segment ahead of it ends, at 8");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{0, 5}, {4, 8}}}), "segments[0][1] = [4, 8) begins before");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{}, {{5, 2}}}), "segments[1][0] = [5, 2) ends before it begins");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{0, 9}}}), "segments[0][0] = [0, 9) is outside the 8 rows");
  EXPECT_REJECTED(SequenceLayout::from_segments(cu, {{{-1, 8}}}), "segments[0][0] = [-1, 8) is outside the 8 rows");
}

TEST(Layout, RejectsRowsAndRanksOutOfRange) {
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 8}, 2);
  EXPECT_REJECTED(layout.rows(2), "rank 2 is outside the layout's 2 ranks");
  EXPECT_REJECTED(layout.segments(-1), "rank -1 is outside");
  EXPECT_REJECTED(layout.global_position(5, 0), "rank 5 is outside");
  EXPECT_REJECTED(layout.global_position(1, 4), "local row 4 is outside the 4 rows of rank 1");
  EXPECT_REJECTED(layout.global_position(1, -1), "local row -1 is outside");
  EXPECT_REJECTED(layout.owner(8), "position 8 is outside the 8 rows");
  EXPECT_REJECTED(layout.local_row(-1), "position -1 is outside");
  EXPECT_REJECTED(layout.document(8), "position 8 is outside");
  EXPECT_REJECTED(layout.is_real(8), "position 8 is outside");
  EXPECT_REJECTED(layout.visible(-5), "position -5 is outside");
}

TEST(Layout, RowsCanBeKeysAlone) {
  const std::vector<RowRange> positions{{1, 1}, {1, 3}, {3, 6}, {9, 12}};
  const SequenceLayout layout = SequenceLayout::zigzag(Offsets{0, 4, 9}, 2, Offsets{0, 5, 10, 12}).keys_only(positions);
  const std::vector<RowRange> tokens{{1, 4}, {5, 6}, {9, 10}};
  EXPECT_TRUE(std::ranges::equal(layout.keys_only(), tokens));
  EXPECT_EQ(layout.query_rows(), 9 - 5);
  EXPECT_EQ(layout.visible(0), (RowRange{0, 1}));
  EXPECT_EQ(layout.visible(2), RowRange{});
  EXPECT_EQ(layout.visible(7), (RowRange{5, 8}));
  EXPECT_TRUE(layout.is_real(2));
  EXPECT_EQ(layout.describe(), "zigzag over 2 ranks, 2 documents, 12 rows (9 real, 5 of them keys only)");
  EXPECT_EQ(layout.keys_only({}), SequenceLayout::zigzag(Offsets{0, 4, 9}, 2, Offsets{0, 5, 10, 12}));
  const std::vector<RowRange> beyond{{0, 2}, {11, 13}}, back{{4, 6}, {5, 8}};
  EXPECT_REJECTED(layout.keys_only(beyond), "keys only [1] = [11, 13): ranges must ascend, within the 12 rows");
  EXPECT_REJECTED(layout.keys_only(back), "keys only [1] = [5, 8)");
}

TEST(Layout, Describes) {
  EXPECT_EQ(SequenceLayout::zigzag(Offsets{0, 500, 500, 1000}, 4, Offsets{0, 512, 512, 1024}).describe(),
            "zigzag over 4 ranks, 3 documents, 1024 rows (1000 real)");
  EXPECT_EQ(SequenceLayout::contiguous(Offsets{0, 1}, 1).describe(),
            "contiguous over 1 rank, 1 document, 1 row (1 real)");
  EXPECT_EQ(SequenceLayout::from_segments(Offsets{0}, Segments(2)).describe(),
            "explicit segments over 2 ranks, 0 documents, 0 rows (0 real)");
}

TEST(LayoutHash, DiffersWhereAnythingDiffers) {
  const std::vector<SequenceLayout> all{
      SequenceLayout::zigzag(Offsets{0, 8, 24}, 2),
      SequenceLayout::zigzag(Offsets{0, 8, 24}, 3),
      SequenceLayout::zigzag(Offsets{0, 8, 23}, 2, Offsets{0, 8, 24}),
      SequenceLayout::zigzag(Offsets{0, 8, 22}, 2, Offsets{0, 8, 24}),
      SequenceLayout::zigzag(Offsets{0, 8, 24}, 2, Offsets{0, 8, 24, 25}),
      SequenceLayout::zigzag(Offsets{0, 8, 8, 24}, 2),
      SequenceLayout::zigzag(Offsets{0, 24}, 2),
      SequenceLayout::contiguous(Offsets{0, 8, 24}, 2),
      SequenceLayout::from_segments(Offsets{0, 8, 24}, {{{0, 24}}, {}}),
      SequenceLayout::from_segments(Offsets{0, 8, 24}, {{}, {{0, 24}}}),
      SequenceLayout::from_segments(Offsets{0, 8, 24}, {{{0, 24}}, {}, {}}),
      SequenceLayout::contiguous(Offsets{0}, 2),
      SequenceLayout::contiguous(Offsets{0}, 3),
      SequenceLayout::contiguous(Offsets{0, 0}, 2),
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(all[i].hash() == all[j].hash(), i == j) << all[i].describe() << " / " << all[j].describe();
      EXPECT_EQ(all[i] == all[j], i == j);
    }
  }
}

TEST(LayoutHash, SamePlacementIsEqualHoweverItWasMade) {
  const SequenceLayout zigzag = SequenceLayout::zigzag(Offsets{0, 8}, 2);
  const SequenceLayout segments =
      SequenceLayout::from_segments(Offsets{0, 8}, {{{0, 2}, {6, 8}}, {{2, 4}, {4, 6}}}, Offsets{0, 8, 8});
  EXPECT_EQ(zigzag.hash(), segments.hash());
  EXPECT_EQ(zigzag, segments);
  EXPECT_EQ(segments.partition(), Partition::explicit_segments);
  EXPECT_EQ(SequenceLayout::zigzag(Offsets{0, 3, 8}, 1), SequenceLayout::contiguous(Offsets{0, 3, 8}, 1));
}

TEST(LayoutHash, IsTheSameOnEveryMachine) {
  EXPECT_EQ(SequenceLayout::zigzag(Offsets{0, 3, 8}, 2, Offsets{0, 4, 12}).hash(), 7110279814088648438ULL);
}

TEST(LayoutOracle, EveryAccessorAgreesPositionByPosition) {
  auto rng = testing::test_rng(1);
  for (int i = 0; i < 400; ++i) {
    const Batch batch = testing::random_batch(rng);
    SCOPED_TRACE(batch.text());
    const SequenceLayout layout = batch.layout();
    const auto expected = testing::positions_by_definition(batch);
    ASSERT_EQ(layout.partition(), batch.partition);
    ASSERT_EQ(layout.ranks(), batch.ranks);
    ASSERT_EQ(layout.documents(), std::ssize(batch.cu) - 1);
    ASSERT_EQ(layout.total_rows(), std::ssize(expected));
    ASSERT_EQ(layout.real_rows(), batch.cu.back());
    ASSERT_TRUE(std::ranges::equal(layout.cu_seqlens(), batch.cu));
    const auto key_only = std::ranges::count(expected, true, &testing::Position::key_only);
    ASSERT_EQ(layout.query_rows(), layout.real_rows() - key_only);
    ASSERT_EQ(layout.describe().find("keys only") == std::string::npos, key_only == 0) << layout.describe();
    ASSERT_EQ(layout == batch.placed(), key_only == 0);
    ASSERT_EQ(layout.hash() == batch.placed().hash(), key_only == 0);
    std::vector<std::vector<RowRange>> segments(static_cast<std::size_t>(batch.ranks));
    for (std::int64_t p = 0; p < std::ssize(expected); ++p) {
      const testing::Position& e = expected[static_cast<std::size_t>(p)];
      ASSERT_EQ(layout.owner(p), e.owner) << p;
      ASSERT_EQ(layout.local_row(p), e.local_row) << p;
      ASSERT_EQ(layout.global_position(e.owner, e.local_row), p);
      ASSERT_EQ(layout.document(p), e.document) << p;
      ASSERT_EQ(layout.is_real(p), e.real) << p;
      ASSERT_EQ(layout.visible(p), e.visible) << p;
      auto& shard = segments[static_cast<std::size_t>(e.owner)];
      if (shard.empty() || shard.back().end != p) shard.push_back({p, p});
      shard.back().end = p + 1;
    }
    for (int r = 0; r < batch.ranks; ++r) {
      const auto& shard = segments[static_cast<std::size_t>(r)];
      ASSERT_TRUE(std::ranges::equal(layout.segments(r), shard)) << "rank " << r;
      ASSERT_EQ(layout.rows(r), std::ranges::count(expected, r, &testing::Position::owner));
    }
    ASSERT_EQ(layout, batch.layout());
    ASSERT_EQ(layout.hash(), batch.layout().hash());
  }
}

}  // namespace
}  // namespace tandem

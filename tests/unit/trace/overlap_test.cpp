// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "support/random.hpp"
#include "tandem/trace.hpp"

namespace tandem {
namespace {

Span span(SpanKind kind, std::int64_t begin, std::int64_t end) {
  return {.kind = kind, .name = "x", .track = "t", .begin_ns = begin, .end_ns = end, .bytes = 0, .path = ""};
}

TEST(Overlap, NothingIsZero) {
  const OverlapSummary s = summarize({});
  EXPECT_EQ(s.compute_ns, 0);
  EXPECT_EQ(s.transfer_ns, 0);
  EXPECT_EQ(s.overlap_ns, 0);
  EXPECT_EQ(s.exposed_ns, 0);
}

TEST(Overlap, CountsUnionsOnceAndStallsEach) {
  const std::vector<Span> spans = {
      span(SpanKind::compute, 0, 10),   span(SpanKind::compute, 5, 20),    // union 20
      span(SpanKind::transfer, 15, 30), span(SpanKind::transfer, 25, 40),  // union 25, 5 of it under compute
      span(SpanKind::wait, 20, 30),     span(SpanKind::wait, 20, 30),      // both stall
  };
  const OverlapSummary s = summarize(spans);
  EXPECT_EQ(s.compute_ns, 20);
  EXPECT_EQ(s.transfer_ns, 25);
  EXPECT_EQ(s.overlap_ns, 5);
  EXPECT_EQ(s.exposed_ns, 20);
}

// Marks every unit of a small time line; negative and empty spans mark none.
OverlapSummary brute_force(const std::vector<Span>& spans) {
  std::array<bool, 64> compute{}, transfer{};
  OverlapSummary s;
  for (const Span& x : spans) {
    for (std::int64_t t = x.begin_ns; t < x.end_ns; ++t) {
      const auto i = static_cast<std::size_t>(t + 32);
      if (x.kind == SpanKind::compute) compute.at(i) = true;
      if (x.kind == SpanKind::transfer) transfer.at(i) = true;
      if (x.kind == SpanKind::wait) ++s.exposed_ns;
    }
  }
  for (std::size_t i = 0; i < compute.size(); ++i) {
    s.compute_ns += compute[i];
    s.transfer_ns += transfer[i];
    s.overlap_ns += compute[i] && transfer[i];
  }
  return s;
}

TEST(Overlap, AgreesWithBruteForce) {
  auto rng = testing::test_rng();
  for (int round = 0; round < 3000; ++round) {
    std::vector<Span> spans(rng() % 12);
    for (Span& s : spans) {
      const auto begin = static_cast<std::int64_t>(rng() % 60) - 30;
      s = span(static_cast<SpanKind>(rng() % 3), begin,
               std::min<std::int64_t>(30, begin + static_cast<std::int64_t>(rng() % 14) - 2));
    }
    const OverlapSummary got = summarize(spans);
    const OverlapSummary expected = brute_force(spans);
    ASSERT_EQ(got.compute_ns, expected.compute_ns) << round;
    ASSERT_EQ(got.transfer_ns, expected.transfer_ns) << round;
    ASSERT_EQ(got.overlap_ns, expected.overlap_ns) << round;
    ASSERT_EQ(got.exposed_ns, expected.exposed_ns) << round;
  }
}

TEST(Trace, KeepsWhatAnyThreadAdds) {
  Trace trace(3);
  EXPECT_EQ(trace.rank(), 3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < 100; ++i) {
        trace.add(span(SpanKind::compute, t, i));
        if (i % 50 == 0) static_cast<void>(trace.spans());
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(trace.spans().size(), 400U);
  trace.clear();
  EXPECT_TRUE(trace.spans().empty());
}

TEST(Trace, NamesOfKindsAndTheClock) {
  EXPECT_STREQ(to_string(SpanKind::compute), "compute");
  EXPECT_STREQ(to_string(SpanKind::transfer), "transfer");
  EXPECT_STREQ(to_string(SpanKind::wait), "wait");
  const std::int64_t before = now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const std::int64_t passed = now_ns() - before;
  EXPECT_GE(passed, 2'000'000);
  EXPECT_LT(passed, 20'000'000'000);
  EXPECT_EQ(span(SpanKind::wait, 3, 10).duration_ns(), 7);
}

}  // namespace
}  // namespace tandem

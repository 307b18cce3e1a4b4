// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "device/bf16.hpp"
#include "support/cluster.hpp"
#include "support/random.hpp"
#include "unit/comm/batches.hpp"

namespace tandem {
namespace {

using testing::Batch;
using testing::ClusterOptions;
using testing::run_cluster;
using testing::soon;

constexpr std::int64_t wide = 3;

BatchSpec spec(DType wire) {
  return {{}, {{"dkv", DType::f32, wide, wire}, {"d_index_k", DType::f32, 1, wire}}, "test"};
}

// A contribution as a function of who makes it, to what: whole numbers small enough that sums are exact in any order.
float contribution(int rank, std::int64_t position, std::int64_t column) {
  return static_cast<float>((rank + 1) * 3 + position % 17 * 2 + column);
}

struct Case {
  const char* transport;
  int queues;
};

class Reduce : public ::testing::TestWithParam<Case> {
 protected:
  ClusterOptions cluster(int ranks, std::uint64_t seed = 0) const {
    ClusterOptions o;
    o.ranks = ranks;
    o.transport = GetParam().transport;
    o.queues = GetParam().queues;
    if (!o.transport.ends_with("tcp"))
      o.transport_options = {{"delay_us", "300"}, {"seed", std::to_string(testing::test_seed() + seed)}};
    return o;
  }
};

// Field and chunk of each submit.
using Submits = std::vector<std::pair<std::size_t, ChunkId>>;

// Block by block, as a backward would.
Submits as_backward(const Plan& plan) {
  Submits submits;
  for (std::size_t f = 0; f < 2; ++f) {
    for (std::size_t b = 0; b < plan.query_blocks().size(); ++b) {
      for (const ChunkId chunk : plan.final_after(b)) submits.emplace_back(f, chunk);
    }
  }
  return submits;
}

// Fills, submits, finishes; returns the results.
std::array<Tensor, 2> reduce_once(Communicator& comm, const Plan& plan, DType result, const Submits& submits,
                                  const std::function<float(std::int64_t position, std::int64_t column)>& value) {
  const Stream stream = comm.device().create_stream();
  const std::array<std::int64_t, 2> widths{wide, 1};
  std::array<Tensor, 2> mine, sums;
  for (std::size_t f = 0; f < 2; ++f) {
    mine[f] = Tensor::allocate(comm.device(), DType::f32, {plan.landed_rows(), widths[f]});
    sums[f] = Tensor::allocate(comm.device(), result, {plan.rows(), widths[f]});
    if (sums[f].elements() > 0)
      std::memset(sums[f].data(), 0xFF, sums[f].row_bytes() * static_cast<std::size_t>(plan.rows()));
    for (std::int64_t i = 0; i < mine[f].elements(); ++i)
      mine[f].data_as<float>()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::vector<ReduceField> fields{{"dkv", mine[0], sums[0]}, {"d_index_k", mine[1], sums[1]}};
  Reduction reduction = comm.reduce(plan, fields, stream);
  // Contributions become real only on the stream, right before they are submitted.
  auto fill = [&](std::size_t f, ChunkId chunk) {
    stream.run([&plan, t = mine[f], w = widths[f], chunk, value] {
      for (const Run& run : plan.arrival(chunk)->runs) {
        for (std::int64_t i = run.landed_row; i < run.landed_row + run.rows; ++i) {
          for (std::int64_t c = 0; c < w; ++c) t.data_as<float>()[i * w + c] = value(plan.to_global(i), c);
        }
      }
    });
    reduction.submit(f == 0 ? "dkv" : "d_index_k", chunk, stream);
  };
  for (const auto& [f, chunk] : submits) fill(f, chunk);
  const Work work = reduction.finish(stream);
  work.wait(stream);
  stream.synchronize(soon());
  work.synchronize(soon());
  std::uint64_t rows_in = 0, rows_out = 0;
  for (const ChunkTransfer& t : plan.departures()) rows_in += static_cast<std::uint64_t>(t.rows);
  for (const ChunkTransfer& t : plan.arrivals()) rows_out += t.step > 0 ? static_cast<std::uint64_t>(t.rows) : 0;
  EXPECT_EQ(work.received_bytes() % std::max<std::uint64_t>(rows_in, 1), 0U);
  EXPECT_EQ(rows_in == 0, work.received_bytes() == 0);
  EXPECT_EQ(rows_out == 0, work.sent_bytes() == 0);
  return sums;
}

std::array<Tensor, 2> reduce_once(Communicator& comm, const Plan& plan, DType result,
                                  const std::function<float(std::int64_t position, std::int64_t column)>& value) {
  return reduce_once(comm, plan, result, as_backward(plan), value);
}

// Each rank submits in another order than the others await, and than its neighbours submit: a transport that matches
// transfers by their order alone would give a chunk another's rows.
TEST_P(Reduce, RanksMaySubmitInAnyOrder) {
  const Batch batch{{0, 70, 121}, {}, Partition::zigzag, {4, 2, 8, 16}};
  constexpr int ranks = 3;
  run_cluster(cluster(ranks), [&](Communicator& comm) {
    const Plan plan = batch.plan(comm.rank(), ranks);
    comm.prepare(plan, spec(DType::f32));
    Submits submits = as_backward(plan);
    ASSERT_GT(submits.size(), 8U);
    if (comm.rank() == 1) std::reverse(submits.begin(), submits.end());
    // Every other one last, and the fields by turns.
    if (comm.rank() == 2) {
      std::stable_partition(submits.begin(), submits.end(),
                            [i = 0](const auto& /*submit*/) mutable { return ++i % 2 == 0; });
    }
    for (int op = 0; op < 3; ++op) {
      const auto sums = reduce_once(comm, plan, DType::f32, submits, [&](std::int64_t p, std::int64_t c) {
        return contribution(comm.rank(), p, c) + static_cast<float>(100 * op);
      });
      for (std::int64_t i = 0; i < plan.rows(); ++i) {
        const std::int64_t p = plan.layout().global_position(comm.rank(), i);
        for (std::int64_t c = 0; c < wide; ++c) {
          float expected = 0;
          for (int r = 0; r < ranks; ++r) {
            if (batch.plan(r, ranks).to_landed(p) >= 0)
              expected += contribution(r, p, c) + static_cast<float>(100 * op);
          }
          ASSERT_EQ(sums[0].data_as<float>()[i * wide + c], expected) << "position " << p << " op " << op;
        }
      }
    }
  });
}

TEST_P(Reduce, AddsEveryContributionOnce) {
  auto rng = testing::test_rng(2);
  for (int round = 0; round < 5; ++round) {
    const int ranks = 1 + round;
    const Batch batch = testing::random_batch(rng);
    run_cluster(cluster(ranks), [&](Communicator& comm) {
      const Plan plan = batch.plan(comm.rank(), ranks);
      comm.prepare(plan, spec(DType::f32));
      for (int op = 0; op < 3; ++op) {
        const auto sums = reduce_once(comm, plan, DType::f32,
                                      [&](std::int64_t p, std::int64_t c) { return contribution(comm.rank(), p, c); });
        for (std::int64_t i = 0; i < plan.rows(); ++i) {
          const std::int64_t p = plan.layout().global_position(comm.rank(), i);
          for (std::int64_t c = 0; c < wide; ++c) {
            float expected = 0;
            for (int r = 0; r < ranks; ++r) {
              if (batch.plan(r, ranks).to_landed(p) >= 0) expected += contribution(r, p, c);
            }
            ASSERT_EQ(sums[0].data_as<float>()[i * wide + c], expected)
                << "position " << p << " column " << c << " op " << op;
            if (c == 0) {
              ASSERT_EQ(sums[1].data_as<float>()[i], expected) << "position " << p;
            }
          }
        }
      }
    });
  }
}

// Contributions of very different size: their order shows in the sum's last bits.
TEST_P(Reduce, TheOrderOfAddingIsThePlans) {
  const Batch batch{{0, 90}, {}, Partition::zigzag, {8, 2, 8, 16}};
  constexpr int ranks = 4;
  auto value = [](int rank, std::int64_t p, std::int64_t c) {
    return std::ldexp(1.0F + static_cast<float>((p * 31 + c * 7 + rank * 13) % 97) / 97.0F,
                      (rank * 5 + static_cast<int>(p)) % 23 - 11);
  };
  std::mutex mutex;
  std::map<std::int64_t, float> first;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    run_cluster(cluster(ranks, seed), [&](Communicator& comm) {
      const Plan plan = batch.plan(comm.rank(), ranks);
      comm.prepare(plan, spec(DType::f32));
      const auto sums =
          reduce_once(comm, plan, DType::f32, [&](std::int64_t p, std::int64_t c) { return value(comm.rank(), p, c); });
      for (std::int64_t i = 0; i < plan.rows(); ++i) {
        const std::int64_t p = plan.layout().global_position(comm.rank(), i);
        // Ring steps 1..R-1 from rank + t, own rows last.
        float expected = 0;
        for (int t = 1; t <= ranks; ++t) {
          const int r = (comm.rank() + t) % ranks;
          if (batch.plan(r, ranks).to_landed(p) >= 0) expected += value(r, p, 0);
        }
        const float got = sums[0].data_as<float>()[i * wide];
        ASSERT_EQ(got, expected) << "position " << p;
        const std::lock_guard lock(mutex);
        ASSERT_EQ(first.try_emplace(p, got).first->second, got);
      }
    });
  }
}

TEST_P(Reduce, Bf16OnTheWireIsRoundedOnceAndAddedInFp32) {
  const Batch batch{{0, 40}, {}, Partition::contiguous, {8, 2, 8, 16}};
  run_cluster(cluster(3), [&](Communicator& comm) {
    const Plan plan = batch.plan(comm.rank(), 3);
    comm.prepare(plan, spec(DType::bf16));
    auto value = [](int rank, std::int64_t p) { return 1.0F + static_cast<float>(p * 3 + rank + 1) / 1000.0F; };
    const auto sums =
        reduce_once(comm, plan, DType::bf16, [&](std::int64_t p, std::int64_t) { return value(comm.rank(), p); });
    for (std::int64_t i = 0; i < plan.rows(); ++i) {
      const std::int64_t p = plan.layout().global_position(comm.rank(), i);
      float expected = 0;
      for (int t = 1; t <= 3; ++t) {
        const int r = (comm.rank() + t) % 3;
        if (batch.plan(r, 3).to_landed(p) < 0) continue;
        expected += r == comm.rank() ? value(r, p) : detail::bf16_round(value(r, p));
      }
      ASSERT_EQ(sums[0].data_as<std::uint16_t>()[i * wide], detail::bf16_from_float(expected)) << "position " << p;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Reduce,
                         ::testing::Values(Case{"loopback", 0}, Case{"loopback", 1}, Case{"tcp", 0}, Case{"tcp", 1},
                                           Case{"stream", 0}, Case{"stream", 1}, Case{"grouped", 0},
                                           Case{"grouped", 1}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + (info.param.queues == 0 ? "_free" : "_one_queue");
                         });

INSTANTIATE_TEST_SUITE_P(Staged, Reduce,
                         ::testing::Values(Case{"staged:loopback", 0}, Case{"staged:loopback", 1},
                                           Case{"staged:tcp", 0}, Case{"staged:tcp", 1}),
                         [](const auto& info) {
                           return testing::test_name_of(info.param.transport) +
                                  (info.param.queues == 0 ? "_free" : "_one_queue");
                         });

TEST(ReduceUsage, EveryChunkIsSubmittedExactlyOnce) {
  const Batch batch{{0, 20}, {}, Partition::contiguous, {4, 2, 8, 16}};
  run_cluster({}, [&](Communicator& comm) {
    const Plan plan = batch.plan(comm.rank(), 2);
    comm.prepare(plan, spec(DType::f32));
    const Stream stream = comm.device().create_stream();
    const Tensor dkv = Tensor::allocate(comm.device(), DType::f32, {plan.landed_rows(), wide});
    const Tensor sum = Tensor::allocate(comm.device(), DType::f32, {plan.rows(), wide});
    std::memset(dkv.data(), 0, dkv.row_bytes() * static_cast<std::size_t>(plan.landed_rows()));
    const std::vector<ReduceField> fields{{"dkv", dkv, sum}};
    Reduction reduction = comm.reduce(plan, fields, stream);
    auto code = [](auto&& call) {
      try {
        call();
      } catch (const Error& e) {
        return e.code();
      }
      return ErrorCode::ok;
    };
    const ChunkId last = plan.arrivals().back().chunk;
    EXPECT_EQ(code([&] { reduction.submit("kv", last, stream); }), ErrorCode::invalid_argument);
    EXPECT_EQ(code([&] { reduction.submit("dkv", 1000, stream); }), ErrorCode::invalid_argument);
    EXPECT_EQ(code([&] { reduction.finish(stream); }), ErrorCode::invalid_usage);
    for (const ChunkTransfer& t : plan.arrivals()) reduction.submit(t.chunk, stream);
    EXPECT_EQ(code([&] { reduction.submit("dkv", last, stream); }), ErrorCode::invalid_usage);
    reduction.finish(stream).synchronize(soon());
    EXPECT_EQ(code([&] { reduction.finish(stream); }), ErrorCode::invalid_usage);
    EXPECT_EQ(code([&] { reduction.submit("dkv", last, stream); }), ErrorCode::invalid_usage);
  });
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
// Which transport serves which pair of ranks, and that one operation may run over several.
#include "comm/routes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "support/cluster.hpp"
#include "support/random.hpp"
#include "unit/comm/batches.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using testing::Batch;
using testing::ClusterOptions;
using testing::error_of;
using ::testing::HasSubstr;
using testing::run_cluster;
using testing::run_ranks;
using testing::soon;

constexpr std::int64_t wide = 4;

BatchSpec spec() {
  return {{{"index_k", DType::f32, 1, DType::f32}, {"kv", DType::f32, wide, DType::f32}},
          {{"dkv", DType::f32, wide, DType::f32}},
          "routes"};
}

float value_of(std::int64_t position, std::int64_t column, int op) {
  return static_cast<float>(position * 8 + column) + static_cast<float>(op) * 0.25F;
}

Tensor source_of(const Communicator& comm, const Plan& plan, std::int64_t width, int op) {
  const Tensor t = Tensor::allocate(comm.device(), DType::f32, {plan.rows(), width});
  for (std::int64_t i = 0; i < plan.rows(); ++i) {
    for (std::int64_t c = 0; c < width; ++c)
      t.data_as<float>()[i * width + c] = value_of(plan.layout().global_position(plan.rank(), i), c, op);
  }
  return t;
}

// Ranks 0 and 1 on one "host", 2 and 3 on another: "stream" within, "grouped" between.
ClusterOptions two_hosts(const std::string& between = "grouped") {
  ClusterOptions o;
  o.ranks = 4;
  o.transport = "stream," + between;
  o.options_of_rank = [](int rank) {
    const std::string others = rank < 2 ? "2+3" : "0+1";
    return std::map<std::string, std::string>{{"stream.refuse", others}, {"delay_us", "200"}};
  };
  return o;
}

TEST(RouteNames, AreSplitAtCommas) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(detail::split_names("tcp"), (Names{"tcp"}));
  EXPECT_EQ(detail::split_names("cuda_p2p, nccl ,tcp"), (Names{"cuda_p2p", "nccl", "tcp"}));
  EXPECT_EQ(detail::split_names("a,,b"), (Names{"a", "", "b"}));
}

TEST(Routes, EachPairHasTheFirstThatReaches) {
  run_cluster(two_hosts(), [](Communicator& comm) {
    EXPECT_TRUE(comm.one_sided());
    for (int peer = 0; peer < 4; ++peer) {
      const std::string route = comm.route(peer);
      if (peer == comm.rank()) {
        EXPECT_EQ(route, "local: the rank itself");
      } else if (peer / 2 == comm.rank() / 2) {
        EXPECT_EQ(route, "stream: the first choice, asked for by the caller");
      } else {
        EXPECT_THAT(route, HasSubstr("grouped: "));
        EXPECT_THAT(route, HasSubstr("stream: there is no wire to rank "));
      }
    }
  });
}

// One of the two not reaching the other is enough: both have to come to the same route.
TEST(Routes, AreTheSameAtBothEnds) {
  ClusterOptions o;
  o.ranks = 3;
  o.transport = "stream,grouped";
  o.options_of_rank = [](int rank) {
    return std::map<std::string, std::string>{{"stream.refuse", rank == 0 ? "2" : ""}};
  };
  run_cluster(o, [](Communicator& comm) {
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == comm.rank()) continue;
      const bool far = comm.rank() + peer == 2 && comm.rank() != 1;
      EXPECT_EQ(comm.route(peer).substr(0, comm.route(peer).find(':')), far ? "grouped" : "stream");
    }
  });
}

class SeveralRoutes : public ::testing::TestWithParam<const char*> {};

TEST_P(SeveralRoutes, ServeOneOperation) {
  auto rng = testing::test_rng(3);
  const std::string between = testing::path_of(GetParam());
  for (int round = 0; round < 4; ++round) {
    const Batch batch = testing::random_batch(rng);
    run_cluster(two_hosts(GetParam()), [&](Communicator& comm) {
      const Plan plan = batch.plan(comm.rank(), comm.size());
      comm.prepare(plan, spec());
      const Stream stream = comm.device().create_stream();
      for (int op = 0; op < 4; ++op) {
        const Tensor k = source_of(comm, plan, 1, op);
        const Tensor kv = source_of(comm, plan, wide, op);
        const std::vector<GatherField> fields{{"index_k", k, {}}, {"kv", kv, {}}};
        const Work work = comm.gather(plan, fields, stream);
        work.wait(stream);
        stream.synchronize(soon());
        const Tensor landed = work.landed("kv");
        for (std::int64_t i = 0; i < plan.landed_rows(); ++i) {
          for (std::int64_t c = 0; c < wide; ++c)
            ASSERT_EQ(landed.data_as<float>()[i * wide + c], value_of(plan.to_global(i), c, op)) << "row " << i;
        }
        work.synchronize(soon());
        for (const std::string& path : work.paths()) EXPECT_TRUE(path == "stream" || path == between) << path;

        const Tensor mine = Tensor::allocate(comm.device(), DType::f32, {plan.landed_rows(), wide});
        for (std::int64_t i = 0; i < plan.landed_rows(); ++i) {
          for (std::int64_t c = 0; c < wide; ++c)
            mine.data_as<float>()[i * wide + c] = value_of(plan.to_global(i), c, op);
        }
        const Tensor sum = Tensor::allocate(comm.device(), DType::f32, {plan.rows(), wide});
        const ReduceField field{"dkv", mine, sum};
        Reduction reduction = comm.reduce(plan, {&field, 1}, stream);
        for (const ChunkTransfer& t : plan.arrivals()) reduction.submit(t.chunk, stream);
        const Work reduced = reduction.finish(stream);
        reduced.wait(stream);
        stream.synchronize(soon());
        for (std::int64_t i = 0; i < plan.rows(); ++i) {
          const std::int64_t p = plan.layout().global_position(comm.rank(), i);
          int count = 0;
          for (int r = 0; r < comm.size(); ++r) count += batch.plan(r, comm.size()).to_landed(p) >= 0 ? 1 : 0;
          ASSERT_EQ(sum.data_as<float>()[i * wide], static_cast<float>(count) * value_of(p, 0, op)) << "position " << p;
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Between, SeveralRoutes, ::testing::Values("grouped", "staged:loopback"),
                         [](const auto& info) { return testing::test_name_of(info.param); });

TEST(Routes, APairThatNothingServesIsNamedWithAllReasons) {
  ClusterOptions o = two_hosts();
  o.finalize = false;
  o.options_of_rank = [](int rank) {
    return std::map<std::string, std::string>{{"refuse", rank == 1 ? "3" : rank == 3 ? "1" : ""}};
  };
  for (const auto& e : run_ranks(o, [](Communicator&) {})) {
    const Error error = error_of(e);
    EXPECT_EQ(error.code(), ErrorCode::transport);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 and rank 3 have no route to each other"));
    EXPECT_THAT(error.what(), HasSubstr("stream: there is no wire"));
    EXPECT_THAT(error.what(), HasSubstr("grouped: there is no wire"));
  }
}

// A transport whose group cannot be made is nobody's, and the next one is taken by all.
TEST(Routes, ATransportThatARankCannotOpenServesNobody) {
  ClusterOptions o = two_hosts();
  o.options_of_rank = [](int rank) {
    return rank == 2 ? std::map<std::string, std::string>{{"stream.no_such_option", "1"}}
                     : std::map<std::string, std::string>{};
  };
  run_cluster(o, [](Communicator& comm) {
    const int peer = comm.rank() == 0 ? 1 : 0;
    EXPECT_THAT(comm.route(peer), HasSubstr("grouped: "));
    EXPECT_THAT(comm.route(peer), HasSubstr("rank 2: "));
    EXPECT_THAT(comm.route(peer), HasSubstr("no_such_option"));
    EXPECT_FALSE(comm.one_sided());
  });
}

TEST(Routes, UnknownTransportsAreRefusedBeforeAnybodyIsMet) {
  ClusterOptions o;
  o.transport = "stream,carrier_pigeon";
  o.finalize = false;
  for (const auto& e : run_ranks(o, [](Communicator&) {})) {
    EXPECT_EQ(error_of(e).code(), ErrorCode::unsupported);
    EXPECT_THAT(error_of(e).what(), HasSubstr("carrier_pigeon"));
  }
}

}  // namespace
}  // namespace tandem

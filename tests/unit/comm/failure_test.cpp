// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "comm/op.hpp"
#include "support/cluster.hpp"
#include "support/promptly.hpp"
#include "unit/comm/batches.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using testing::Batch;
using testing::ClusterOptions;
using testing::error_of;
using testing::run_ranks;
using testing::soon;
using Clock = std::chrono::steady_clock;

const Batch batch{{0, 24}, {}, Partition::contiguous, {4, 2, 8, 16}};
BatchSpec spec() { return {{{"kv", DType::f32, 2, DType::f32}}, {{"dkv", DType::f32, 2, DType::f32}}, "test"}; }

class Failure : public ::testing::TestWithParam<const char*> {
 protected:
  ClusterOptions cluster(int ranks, std::chrono::milliseconds timeout = 20s) const {
    ClusterOptions o;
    o.ranks = ranks;
    o.transport = GetParam();
    o.operation_timeout = timeout;
    o.finalize = false;
    return o;
  }
};

struct Member {
  Plan plan;
  Stream stream;
  Tensor kv;
  explicit Member(Communicator& comm)
      : plan(batch.plan(comm.rank(), comm.size())),
        stream(comm.device().create_stream()),
        kv(Tensor::allocate(comm.device(), DType::f32, {plan.rows(), 2})) {
    comm.prepare(plan, spec());
  }
  Work gather(Communicator& comm) {
    const GatherField field{"kv", kv, {}};
    return comm.gather(plan, {&field, 1}, stream);
  }
};

TEST_P(Failure, ATimedOutGatherSaysWhichChunksOfWhichFieldAreMissingFromWhom) {
  const auto thrown = run_ranks(cluster(3, 400ms), [](Communicator& comm) {
    Member s(comm);
    if (comm.rank() == 1) {
      // Never gathers. The others' news ends the wait.
      while (comm.status().ok()) std::this_thread::sleep_for(5ms);
      comm.status().throw_if_failed();
    }
    const auto begin = Clock::now();
    const Work work = s.gather(comm);
    work.wait(s.stream);
    s.stream.synchronize(soon());
    EXPECT_LT(Clock::now() - begin, 400ms + testing::promptly);
    // Rank 0 receives nothing: its stream goes on as soon as what it sends has been read.
    if (comm.rank() == 2) {
      EXPECT_FALSE(comm.status().ok());
    }
    EXPECT_THROW(work.synchronize(soon()), Error);
    EXPECT_LT(Clock::now() - begin, 400ms + testing::promptly);
    EXPECT_FALSE(comm.status().ok());
    EXPECT_EQ(comm.status().code, work.status().code);
    work.synchronize(soon());
  });
  // Rank 2 needs rows of rank 1, rank 0 only has to get rid of some: whichever notices first tells the rest.
  int timeouts = 0;
  for (const auto& e : thrown) {
    const Error error = error_of(e);
    const std::string what = error.what();
    EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << what;
    EXPECT_NE(what.find("rank 1"), std::string::npos) << what;
    if (error.code() != ErrorCode::timeout) continue;
    ++timeouts;
    EXPECT_NE(what.find("gather"), std::string::npos) << what;
    EXPECT_TRUE(what.find("kv chunks 2-3 from rank 1") != std::string::npos ||
                what.find("sends that rank 1 did not take") != std::string::npos)
        << what;
  }
  EXPECT_GE(timeouts, 1);
}

TEST_P(Failure, OperationsInDifferentOrderEndAtTheDeadline) {
  // There transfers have no names: the receive of one operation takes what another sends.
  if (GetParam() == std::string("grouped")) return;
  const auto thrown = run_ranks(cluster(2, 400ms), [](Communicator& comm) {
    Member s(comm);
    if (comm.rank() == 0) {
      s.gather(comm).synchronize(soon());
    } else {
      int word = 0;
      const Transfer t{Transfer::Direction::receive, 0, &word, sizeof(word)};
      comm.exchange({&t, 1}, s.stream).synchronize(soon());
    }
  });
  for (const auto& e : thrown) EXPECT_NE(error_of(e).code(), ErrorCode::ok);
}

TEST_P(Failure, AbortReleasesWaitersHereAndThere) {
  const auto thrown = run_ranks(cluster(3), [](Communicator& comm) {
    Member s(comm);
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(50ms);
      comm.abort("the loss is not a number");
      comm.status().throw_if_failed();
    }
    const Work work = s.gather(comm);
    work.wait(s.stream);
    const auto begin = Clock::now();
    s.stream.synchronize(soon());
    EXPECT_LT(Clock::now() - begin, 5s);
    EXPECT_THROW(work.wait(s.stream), Error);
    EXPECT_THROW(s.gather(comm), Error);
    work.synchronize(soon());
  });
  for (const auto& e : thrown) {
    const Error error = error_of(e);
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_EQ(error.rank(), 0);
    EXPECT_NE(std::string(error.what()).find("the loss is not a number"), std::string::npos) << error.what();
  }
}

TEST_P(Failure, ARankThatGoesAwayIsNamedOnEverySurvivor) {
  const auto thrown = run_ranks(cluster(4), [](Communicator& comm) {
    Member s(comm);
    if (comm.rank() == 2) return;  // destroys its communicator without finalize
    const Work work = s.gather(comm);
    work.wait(s.stream);
    s.stream.synchronize(soon());
    work.synchronize(soon());
    comm.barrier(soon());
  });
  EXPECT_EQ(thrown[2], nullptr);
  for (const std::size_t r : {0U, 1U, 3U}) {
    const Error error = error_of(thrown[r]);
    EXPECT_TRUE(error.code() == ErrorCode::peer_failed || error.code() == ErrorCode::aborted) << error.what();
    EXPECT_EQ(error.rank(), 2) << error.what();
  }
}

// One that was made as the communicator failed: what an operation keeps usually keeps the operation.
TEST(Operation, ThatIsNotEnqueuedLetsGoOfWhatItKeeps) {
  const Device device = Device::host();
  detail::OpState::Setup setup;
  setup.device = device.handle();
  auto op = std::make_shared<detail::OpState>(std::move(setup));
  op->keep(std::make_shared<std::shared_ptr<detail::OpState>>(op));
  const std::weak_ptr<detail::OpState> seen = op;
  op->discard();
  op.reset();
  EXPECT_TRUE(seen.expired());
}

TEST_P(Failure, DestroyingTheCommunicatorFailsItsOpenWorks) {
  std::atomic<int> prepared{0};
  const auto thrown = run_ranks(cluster(2), [&](Communicator& given) {
    std::optional<Communicator> comm(std::move(given));
    Member s(*comm);
    ++prepared;
    while (prepared.load() < 2) std::this_thread::sleep_for(1ms);
    if (comm->rank() == 1) {
      while (comm->status().ok()) std::this_thread::sleep_for(5ms);
      return;
    }
    const Work gather = s.gather(*comm);
    const Tensor dkv = Tensor::allocate(comm->device(), DType::f32, {s.plan.landed_rows(), 2});
    const Tensor sum = Tensor::allocate(comm->device(), DType::f32, {s.plan.rows(), 2});
    const ReduceField field{"dkv", dkv, sum};
    Reduction reduction = comm->reduce(s.plan, {&field, 1}, s.stream);
    gather.wait(s.stream);
    comm.reset();
    s.stream.synchronize(soon());
    EXPECT_TRUE(gather.done());
    EXPECT_EQ(reduction.work().status().code, ErrorCode::aborted);
    EXPECT_THROW(reduction.submit(s.plan.arrivals().front().chunk, s.stream), Error);
  });
  for (const auto& e : thrown) EXPECT_EQ(e, nullptr);
}

TEST_P(Failure, SynchronizeTimesOutAndLeavesTheOperationInFlight) {
  ClusterOptions options = cluster(2);
  options.finalize = true;
  testing::run_cluster(options, [](Communicator& comm) {
    Member s(comm);
    if (comm.rank() == 0) std::this_thread::sleep_for(300ms);
    const Work work = s.gather(comm);
    if (comm.rank() == 1) {
      try {
        work.synchronize(Deadline::after(50ms));
        ADD_FAILURE() << "rank 0 was late";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::timeout);
        EXPECT_NE(std::string(e.what()).find("from rank 0"), std::string::npos) << e.what();
      }
      EXPECT_TRUE(work.status().ok());
    }
    work.synchronize(soon());
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Failure, ::testing::Values("loopback", "tcp", "stream", "grouped"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Staged, Failure, ::testing::Values("staged:loopback", "staged:tcp"),
                         [](const auto& info) { return testing::test_name_of(info.param); });

}  // namespace
}  // namespace tandem

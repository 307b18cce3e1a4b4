// SPDX-License-Identifier: Apache-2.0
// Overlap proved by gates, not by times: what must happen first is held up until what must overlap it has happened. A
// pipeline that gathers all before it computes, or reduces all after, waits for ever here and times out.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "comm/tag.hpp"
#include "support/random.hpp"
#include "support/stream_transport.hpp"
#include "transports/loopback/control.hpp"
#include "unit/dsa/forwarding_kernels.hpp"
#include "unit/dsa/run.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using testing::ForwardingKernels;
using testing::make_problem;
using testing::Problem;
using testing::run;
using testing::RunOptions;

constexpr int ranks = 4;
constexpr auto patience = 4s;

RunOptions options_for(int queues) {
  RunOptions options;
  options.cluster.ranks = ranks;
  options.cluster.queues = queues;
  options.cluster.operation_timeout = patience;
  options.cluster.trace = true;
  return options;
}

class Overlap : public ::testing::TestWithParam<int> {};

// Tells when the compute of a rank's first indexer step has started.
class AnnouncingKernels : public ForwardingKernels {
 public:
  AnnouncingKernels(std::shared_ptr<KernelSet> inner, std::atomic<int>& started)
      : ForwardingKernels(std::move(inner)), started_(started) {}
  void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state, const TopkLists& out,
                    const Stream& stream) override {
    if (!std::exchange(announced_, true)) stream.run([this] { ++started_; });
    ForwardingKernels::indexer_topk(step, in, state, out, stream);
  }

 private:
  std::atomic<int>& started_;
  bool announced_ = false;
};

// `hold(matches)` makes a gate; Delivery is what the transport's gates see.
template <class Delivery, class Hold>
void run_with_the_last_chunk_held(int queues, const char* transport, const Hold& hold) {
  auto rng = testing::test_rng(70);
  const Problem problem = make_problem(rng, {64}, 0, {}, DType::f32);
  RunOptions options = options_for(queues);
  options.cluster.transport = transport;
  const SequenceLayout layout = SequenceLayout::zigzag(problem.cu, ranks, problem.padded);
  std::map<int, ChunkId> last;  // index key chunk that arrives last at each rank
  for (int r = 0; r < ranks; ++r) last[r] = Plan(layout, r, options.plan).arrivals().back().chunk;
  const auto gate = hold([&](const Delivery& d) {
    const detail::Tag tag = detail::Tag::decode(d.tag);
    return tag.kind == detail::OpKind::gather && tag.field == 0 && static_cast<ChunkId>(tag.chunk) == last.at(d.dst);
  });
  std::atomic<int> started{0};
  options.wrap = [&](std::shared_ptr<KernelSet> inner, Communicator&) {
    return std::make_shared<AnnouncingKernels>(std::move(inner), started);
  };
  std::thread opener([&] {
    const auto end = std::chrono::steady_clock::now() + 2 * patience;
    while (started.load() < ranks && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(gate->wait_held(1, Deadline::after(patience)));
    gate->release();
  });
  run(problem, options);
  opener.join();
  EXPECT_EQ(started.load(), ranks);
}

TEST_P(Overlap, TheFirstIndexerStepRunsBeforeTheLastChunkArrives) {
  run_with_the_last_chunk_held<loopback::Delivery>(
      GetParam(), "loopback", [](auto matches) { return std::make_unique<loopback::Gate>(std::move(matches)); });
}

TEST_P(Overlap, TheSameOverAStreamOrderedTransport) {
  run_with_the_last_chunk_held<testing::StreamDelivery>(
      GetParam(), "stream", [](auto matches) { return std::make_unique<testing::StreamGate>(std::move(matches)); });
}

TEST_P(Overlap, TheSameOverAStagedTransport) {
  run_with_the_last_chunk_held<loopback::Delivery>(
      GetParam(), "staged:loopback", [](auto matches) { return std::make_unique<loopback::Gate>(std::move(matches)); });
}

// Holds up the last query block of a rank until a chunk that the rank submitted has arrived at its owner.
struct Arrivals {
  std::mutex mutex;
  std::map<int, Work> reductions;  // by rank

  bool arrived_from(int rank) {
    const std::lock_guard lock(mutex);
    for (const auto& [owner, work] : reductions) {
      if (owner == rank) continue;
      for (const ChunkTiming& c : work.chunks()) {
        if (c.field == "dkv" && c.peer == rank && c.arrived_ns != 0) return true;
      }
    }
    return false;
  }
};

class PatientKernels : public ForwardingKernels {
 public:
  PatientKernels(std::shared_ptr<KernelSet> inner, int rank, Arrivals& arrivals, std::atomic<int>& seen)
      : ForwardingKernels(std::move(inner)), rank_(rank), arrivals_(arrivals), seen_(seen) {}
  void sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                           const Stream& stream) override {
    if (rows.begin == 0) {
      stream.run([this] {
        const auto end = std::chrono::steady_clock::now() + patience;
        while (std::chrono::steady_clock::now() < end) {
          if (arrivals_.arrived_from(rank_)) {
            ++seen_;
            return;
          }
          std::this_thread::sleep_for(1ms);
        }
      });
    }
    ForwardingKernels::sparse_mla_backward(rows, in, grads, stream);
  }

 private:
  int rank_;
  Arrivals& arrivals_;
  std::atomic<int>& seen_;
};

TEST_P(Overlap, AFinishedChunkReachesItsOwnerBeforeTheLastBlockIsComputed) {
  auto rng = testing::test_rng(71);
  const Problem problem = make_problem(rng, {64}, 0, {}, DType::f32);
  for (const char* transport : {"loopback", "tcp", "stream", "staged:loopback", "staged:tcp"}) {
    RunOptions options = options_for(GetParam());
    options.cluster.transport = transport;
    options.cluster.operation_timeout = 20s;
    const SequenceLayout layout = SequenceLayout::zigzag(problem.cu, ranks, problem.padded);
    // The ranks that have something of another owner to send before their last block.
    std::set<int> early;
    for (int r = 0; r < ranks; ++r) {
      const Plan plan(layout, r, options.plan);
      for (std::size_t b = 0; b + 1 < plan.query_blocks().size(); ++b) {
        for (const ChunkId c : plan.final_after(b)) {
          if (plan.chunks()[static_cast<std::size_t>(c)].owner != r) early.insert(r);
        }
      }
    }
    ASSERT_TRUE(early.contains(0));
    Arrivals arrivals;
    std::atomic<int> seen{0};
    options.wrap = [&](std::shared_ptr<KernelSet> inner, Communicator& comm) -> std::shared_ptr<KernelSet> {
      if (!early.contains(comm.rank())) return inner;
      return std::make_shared<PatientKernels>(std::move(inner), comm.rank(), arrivals, seen);
    };
    options.enqueued = [&](Communicator& comm, const DsaAttention::Forward&, const DsaAttention::Backward& backward) {
      const std::lock_guard lock(arrivals.mutex);
      arrivals.reductions[comm.rank()] = backward.reduce;
    };
    run(problem, options);
    EXPECT_EQ(seen.load(), static_cast<int>(early.size())) << transport;
  }
}

INSTANTIATE_TEST_SUITE_P(Queues, Overlap, ::testing::Values(0, 1),
                         [](const auto& info) { return std::string(info.param == 0 ? "free" : "one_queue"); });

class Spans : public ::testing::TestWithParam<const char*> {};

TEST_P(Spans, HaveTheNamesOfTheContract) {
  auto rng = testing::test_rng(72);
  const Problem problem = make_problem(rng, {64}, 0, {}, DType::f32);
  RunOptions options = options_for(0);
  options.cluster.transport = GetParam();
  std::mutex mutex;
  std::set<std::string> prefixes;
  options.wrap = [&](std::shared_ptr<KernelSet> inner, Communicator&) { return inner; };
  std::vector<std::shared_ptr<Trace>> traces;
  options.enqueued = [&](Communicator& comm, const DsaAttention::Forward&, const DsaAttention::Backward&) {
    const std::lock_guard lock(mutex);
    traces.push_back(comm.trace());
  };
  run(problem, options);
  for (const auto& trace : traces) {
    for (const Span& span : trace->spans()) prefixes.insert(span.name.substr(0, span.name.rfind('/')));
  }
  EXPECT_EQ(prefixes,
            (std::set<std::string>{"compute", "compute/backward", "compute/indexer", "compute/indexer_backward",
                                   "compute/indexer_loss", "gather/index_k", "gather/kv", "reduce/d_index_k",
                                   "reduce/dkv", "wait/d_index_k", "wait/dkv", "wait/index_k", "wait/kv"}));
}

INSTANTIATE_TEST_SUITE_P(Paths, Spans, ::testing::Values("loopback", "stream", "grouped"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Staged, Spans, ::testing::Values("staged:loopback"),
                         [](const auto& info) { return testing::test_name_of(info.param); });

}  // namespace
}  // namespace tandem

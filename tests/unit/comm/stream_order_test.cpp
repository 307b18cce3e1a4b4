// SPDX-License-Identifier: Apache-2.0
// What only stream-ordered transports have: lanes, flags that are used again, regions, and nobody who calls back. Every
// run also fails if the transport saw its host break the rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "support/cluster.hpp"
#include "support/promptly.hpp"
#include "support/random.hpp"
#include "unit/comm/batches.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using testing::Batch;
using testing::ClusterOptions;
using testing::error_of;
using testing::run_cluster;
using testing::run_ranks;
using testing::soon;

constexpr std::int64_t wide = 4;
const Batch zigzag{{0, 50, 71}, {}, Partition::zigzag, {4, 2, 8, 16}};
const Batch packed{{0, 9, 20, 26, 41, 44, 60}, {}, Partition::zigzag, {16, 2, 8, 1}};

BatchSpec spec() {
  return {{{"index_k", DType::f32, 1, DType::f32}, {"kv", DType::f32, wide, DType::f32}},
          {{"dkv", DType::f32, wide, DType::f32}},
          "test"};
}

float value_of(std::int64_t position, std::int64_t column, int op) {
  return static_cast<float>(position * 8 + column) + static_cast<float>(op) * 0.25F;
}

struct Case {
  const char* transport;
  int queues;
};

class StreamOrder : public ::testing::TestWithParam<Case> {
 protected:
  static ClusterOptions cluster(int ranks) {
    ClusterOptions o;
    o.ranks = ranks;
    o.transport = GetParam().transport;
    o.queues = GetParam().queues;
    if (!o.transport.ends_with("tcp"))
      o.transport_options = {{"delay_us", "300"}, {"seed", std::to_string(testing::test_seed())}};
    return o;
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, StreamOrder,
                         ::testing::Values(Case{"stream", 0}, Case{"stream", 1}, Case{"staged:loopback", 0},
                                           Case{"staged:loopback", 1}, Case{"staged:tcp", 0}, Case{"staged:tcp", 1}),
                         [](const auto& info) {
                           return testing::test_name_of(info.param.transport) +
                                  (info.param.queues == 0 ? "_free" : "_one_queue");
                         });

struct Member {
  Communicator& comm;
  Plan plan;
  Prepared prepared;
  Stream stream;

  Member(Communicator& c, const Batch& batch)
      : comm(c),
        plan(batch.plan(c.rank(), c.size())),
        prepared(c.prepare(plan, spec())),
        stream(c.device().create_stream()) {}

  Tensor source(std::int64_t width, int op) const {
    const Tensor t = Tensor::allocate(comm.device(), DType::f32, {plan.rows(), width});
    for (std::int64_t i = 0; i < plan.rows(); ++i) {
      for (std::int64_t c = 0; c < width; ++c)
        t.data_as<float>()[i * width + c] = value_of(plan.layout().global_position(plan.rank(), i), c, op);
    }
    return t;
  }
  Work gather(int op, const Tensor& to = {}) {
    const std::vector<GatherField> fields{{"index_k", source(1, op), {}}, {"kv", source(wide, op), to}};
    return comm.gather(plan, fields, stream);
  }
  bool landed_is(const Tensor& kv, int op) const {
    for (std::int64_t i = 0; i < plan.landed_rows(); ++i) {
      for (std::int64_t c = 0; c < wide; ++c) {
        if (kv.data_as<float>()[i * wide + c] != value_of(plan.to_global(i), c, op)) return false;
      }
    }
    return true;
  }
};

// The reading stream is not the one that gathers. It only follows the operations by waiting for them, so its wait must
// not be satisfied by what was left of the operation before in the same slot.
TEST_P(StreamOrder, AnotherStreamReadsWhileTheLaneIsUsedAgain) {
  for (const auto& [batch, ranks] : {std::pair(zigzag, 3), {packed, 3}, {zigzag, 1}}) {
    run_cluster(cluster(ranks), [&batch = batch, ranks = ranks](Communicator& comm) {
      Member m(comm, batch);
      const Stream reader = comm.device().create_stream({.name = "reader"});
      std::vector<int> right(8, -1);
      std::vector<Event> read(right.size());
      for (int op = 0; op < static_cast<int>(right.size()); ++op) {
        const auto i = static_cast<std::size_t>(op);
        // The readers of the slot are the caller's to wait for.
        if (op >= 2) m.stream.wait(read[i - 2]);
        if (op % ranks == comm.rank()) m.stream.run([] { std::this_thread::sleep_for(2ms); });
        const Work work = m.gather(op);
        // What arrives last first, own rows at the end: nothing else puts the reader behind the beginning.
        for (auto a = m.plan.arrivals().rbegin(); a != m.plan.arrivals().rend(); ++a) {
          work.wait(reader, "kv", a->chunk);
        }
        reader.run([&m, &right, i, op, kv = work.landed("kv")] { right[i] = m.landed_is(kv, op) ? 1 : 0; });
        work.wait(reader);  // once more is harmless
        read[i] = comm.device().create_event();
        reader.record(read[i]);
      }
      reader.synchronize(soon());
      EXPECT_EQ(right, std::vector<int>(right.size(), 1));
    });
  }
}

// A wait that comes after the lane's next operation has begun is behind what it stands for all the same.
TEST_P(StreamOrder, ALateWaitIsBehindItsOperation) {
  run_cluster(cluster(3), [&](Communicator& comm) {
    Member m(comm, zigzag);
    const Stream reader = comm.device().create_stream({.name = "reader"});
    std::vector<Work> works;
    for (int op = 0; op < 4; ++op) works.push_back(m.gather(op));
    for (const Work& work : works) work.wait(reader);
    std::vector<int> right(2, -1);
    for (const int op : {2, 3}) {
      reader.run([&, op] {
        right[static_cast<std::size_t>(op - 2)] = m.landed_is(works[static_cast<std::size_t>(op)].landed("kv"), op);
      });
    }
    reader.synchronize(soon());
    EXPECT_EQ(right, std::vector<int>(2, 1));
    for (const Work& work : works) work.synchronize(soon());
  });
}

// Packed rows are placed by whoever waits for them; synchronize() has to see to it if nobody did.
TEST_P(StreamOrder, SynchronizePlacesWhatNoStreamWaitedFor) {
  run_cluster(cluster(4), [&](Communicator& comm) {
    Member m(comm, packed);
    ASSERT_TRUE(std::any_of(m.plan.arrivals().begin(), m.plan.arrivals().end(),
                            [](const ChunkTransfer& t) { return t.packed && t.step > 0; }));
    for (int op = 0; op < 4; ++op) {
      const Work work = m.gather(op);
      work.synchronize(soon());
      EXPECT_TRUE(work.done());
      EXPECT_TRUE(m.landed_is(work.landed("kv"), op)) << "op " << op;
      EXPECT_EQ(work.received_bytes(), static_cast<std::uint64_t>(m.plan.received_rows()) * 4 * (1 + wide));
      EXPECT_EQ(work.sent_bytes(), static_cast<std::uint64_t>(m.plan.sent_rows()) * 4 * (1 + wide));
      for (const ChunkTiming& c : work.chunks()) {
        EXPECT_GT(c.posted_ns, 0);
        EXPECT_GE(c.arrived_ns, c.posted_ns);
      }
    }
  });
}

// Rows that are kept in the caller's memory are complete there whatever becomes of the slots.
TEST_P(StreamOrder, KeptRowsOutliveTheSlots) {
  run_cluster(cluster(3), [&](Communicator& comm) {
    Member m(comm, packed);
    const auto bytes = static_cast<std::size_t>(m.plan.landed_rows() * wide) * sizeof(float);
    const Tensor kept = Tensor::view(comm.allocate(512 + bytes), 512, DType::f32, {m.plan.landed_rows(), wide});
    const Work first = m.gather(0, kept);
    for (int op = 1; op < 6; ++op) m.gather(op).wait(m.stream);
    first.wait(m.stream);
    m.stream.synchronize(soon());
    EXPECT_TRUE(m.landed_is(kept, 0));
    if (!comm.one_sided()) return;
    try {
      m.gather(6, Tensor::allocate(comm.device(), DType::f32, {m.plan.landed_rows(), wide}));
      ADD_FAILURE() << "peers cannot write there";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("'kv'"), std::string::npos) << e.what();
    }
  });
}

// Which of the ranks need more memory differs from shape to shape; regions must have the same number on all.
TEST_P(StreamOrder, ArenasGrowTogether) {
  const Batch small{{0, 12}, {}, Partition::zigzag, {4, 2, 8, 16}};
  const Batch more_at_the_end{{0, 30}, {}, Partition::contiguous, {4, 2, 8, 16}};  // rank 0 needs 10 rows, rank 2 all
  run_cluster(cluster(3), [&](Communicator& comm) {
    std::vector<Member> members;
    members.reserve(4);
    int op = 0;
    for (const Batch& batch : {small, more_at_the_end, packed, zigzag}) {
      members.emplace_back(comm, batch);
      for (Member& m : members) {  // older ones as well
        const Work work = m.gather(++op);
        work.wait(m.stream);
        m.stream.synchronize(soon());
        EXPECT_TRUE(m.landed_is(work.landed("kv"), op));
      }
    }
  });
}

// Own contributions become final late, on another stream than the one that begins reductions and the one that ends
// them; the next but one, in the same staging, is begun before the results are stored.
TEST_P(StreamOrder, AReductionMaySpreadOverStreams) {
  run_cluster(cluster(4), [](Communicator& comm) {
    constexpr int ops = 5;
    Member m(comm, zigzag);
    const std::vector<Stream> streams{m.stream, comm.device().create_stream(), comm.device().create_stream()};
    std::vector<Tensor> sums;
    std::vector<Work> works;
    for (int op = 0; op < ops; ++op) {
      const Tensor mine = Tensor::allocate(comm.device(), DType::f32, {m.plan.landed_rows(), wide});
      sums.push_back(Tensor::allocate(comm.device(), DType::f32, {m.plan.rows(), wide}));
      const ReduceField field{"dkv", mine, sums.back()};
      Reduction reduction = comm.reduce(m.plan, {&field, 1}, m.stream);
      EXPECT_THROW(reduction.work().wait(m.stream), Error) << "not finished";
      for (const ChunkTransfer& t : m.plan.arrivals()) {
        const Stream& s = streams[t.step == 0 ? 1 : 0];
        s.run([&m, &t, mine, op] {
          if (t.step == 0) std::this_thread::sleep_for(2ms);
          for (const tandem::Run& run : t.runs) {
            for (std::int64_t i = run.landed_row; i < run.landed_row + run.rows; ++i) {
              for (std::int64_t c = 0; c < wide; ++c)
                mine.data_as<float>()[i * wide + c] = static_cast<float>(m.plan.to_global(i) + c + op);
            }
          }
        });
        reduction.submit(t.chunk, s);
      }
      works.push_back(reduction.finish(streams[2]));
    }
    for (const Work& work : works) work.wait(streams[1]);
    streams[1].synchronize(soon());
    for (const Work& work : works) work.synchronize(soon());
    for (int op = 0; op < ops; ++op) {
      for (std::int64_t i = 0; i < m.plan.rows(); ++i) {
        const std::int64_t p = m.plan.layout().global_position(comm.rank(), i);
        int count = 0;
        for (int r = 0; r < comm.size(); ++r) count += zigzag.plan(r, comm.size()).to_landed(p) >= 0;
        EXPECT_EQ(sums[static_cast<std::size_t>(op)].data_as<float>()[i * wide + 1],
                  static_cast<float>(count) * static_cast<float>(p + 1 + op))
            << "position " << p << " op " << op;
      }
    }
  });
}

// Nothing is written to memory that is still held here after the communicator is gone, and nothing of it is lost.
TEST_P(StreamOrder, LandedRowsOutliveTheCommunicator) {
  ClusterOptions options = cluster(2);
  options.finalize = false;
  run_cluster(options, [&](Communicator& given) {
    std::optional<Communicator> comm(std::move(given));
    Member m(*comm, zigzag);
    const Work work = m.gather(1);
    work.wait(m.stream);
    m.stream.synchronize(soon());
    const Tensor kv = work.landed("kv");
    comm->finalize(soon());
    comm.reset();
    EXPECT_TRUE(m.landed_is(kv, 1));
    work.wait(m.stream);
    m.stream.synchronize(soon());
  });
}

TEST_P(StreamOrder, ASplitGroupHasRegionsOfItsOwn) {
  run_cluster(cluster(4), [](Communicator& comm) {
    std::optional<Communicator> half = comm.split(comm.rank() % 2, comm.rank());
    Member whole(comm, zigzag);
    Member part(*half, packed);
    for (int op = 0; op < 3; ++op) {
      const Work a = whole.gather(op);
      const Work b = part.gather(op);
      a.wait(whole.stream);
      b.wait(part.stream);
      whole.stream.synchronize(soon());
      part.stream.synchronize(soon());
      EXPECT_TRUE(whole.landed_is(a.landed("kv"), op));
      EXPECT_TRUE(part.landed_is(b.landed("kv"), op));
    }
    half->finalize(soon());
  });
}

TEST(StreamOrderLimits, TooFewFlagsAreSaidOnAllRanks) {
  ClusterOptions options;
  options.transport = "stream";
  options.finalize = false;
  const Batch batch{{0, 1400}, {}, Partition::contiguous, {1, 2, 8, 16}};
  const auto thrown = run_ranks(options, [&](Communicator& comm) { comm.prepare(batch.plan(comm.rank(), 2), spec()); });
  for (const auto& e : thrown) {
    const Error error = error_of(e);
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("rank 1 needs 1400 arrival flags"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("has 1024: use larger chunks"), std::string::npos) << error.what();
  }
}

// A ring: what came from one neighbour goes on to the other, as ring attention passes its keys.
TEST_P(StreamOrder, ARingOfExchangesBringsEverybodysBlock) {
  constexpr int ranks = 4;
  constexpr std::size_t words = 3000;
  run_cluster(cluster(ranks), [](Communicator& comm) {
    const Stream stream = comm.device().create_stream();
    const Buffer blocks = comm.allocate(2 * words * sizeof(int));
    auto* const half = static_cast<int*>(blocks.data());
    for (std::size_t i = 0; i < words; ++i) half[i] = comm.rank() * 10000 + static_cast<int>(i);
    const int next = (comm.rank() + 1) % ranks;
    const int before = (comm.rank() + ranks - 1) % ranks;
    for (int step = 1; step <= 2 * ranks; ++step) {
      int* const from = half + static_cast<std::size_t>((step + 1) % 2) * words;
      int* const to = half + static_cast<std::size_t>(step % 2) * words;
      const std::vector<Transfer> transfers{
          {Transfer::Direction::send, next, from, words * sizeof(int), to},
          {Transfer::Direction::receive, before, to, words * sizeof(int), nullptr},
      };
      const Work work = comm.exchange(transfers, stream);
      work.wait(stream);
      auto seen = std::make_shared<std::vector<int>>();
      stream.run([to, seen] { seen->assign(to, to + words); });
      stream.synchronize(soon());
      const int owner = (comm.rank() + ranks * 2 - step % ranks) % ranks;
      for (std::size_t i = 0; i < words; ++i)
        ASSERT_EQ((*seen)[i], owner * 10000 + static_cast<int>(i)) << "step " << step;
    }
  });
}

TEST(StreamOrderLimits, AnExchangeSaysWhatCannotLandWhere) {
  ClusterOptions options;
  options.transport = "stream";
  run_cluster(options, [](Communicator& comm) {
    const Stream stream = comm.device().create_stream();
    const Buffer shared = comm.allocate(64);
    int own[4] = {};
    const auto refused = [&](const Transfer& t) {
      try {
        comm.exchange({&t, 1}, stream);
        ADD_FAILURE() << "accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
        EXPECT_NE(std::string(e.what()).find("a buffer of Communicator::allocate"), std::string::npos) << e.what();
      }
    };
    const int peer = 1 - comm.rank();
    refused({Transfer::Direction::send, peer, own, sizeof(own), nullptr});
    refused({Transfer::Direction::send, peer, own, sizeof(own), own});
    refused({Transfer::Direction::receive, peer, own, sizeof(own), nullptr});
    refused({Transfer::Direction::receive, peer, static_cast<char*>(shared.data()) + 60, 8, nullptr});
  });
}

// A rank that only sends has nothing to miss: it hears from the transport that nobody took what it sent.
TEST(StreamOrderFailure, ARankThatOnlySendsTimesOutToo) {
  ClusterOptions options;
  options.transport = "stream";
  options.operation_timeout = 300ms;
  options.finalize = false;
  const Batch batch{{0, 24}, {}, Partition::contiguous, {4, 2, 8, 16}};
  const auto thrown = run_ranks(options, [&](Communicator& comm) {
    Member m(comm, batch);
    if (comm.rank() == 1) {
      while (comm.status().ok()) std::this_thread::sleep_for(5ms);
      return;
    }
    const Work work = m.gather(0);
    work.wait(m.stream);
    const auto begin = std::chrono::steady_clock::now();
    m.stream.synchronize(soon());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 300ms + testing::promptly);
    work.synchronize(soon());
  });
  const Error error = error_of(thrown[0]);
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_NE(std::string(error.what()).find("6 sends that rank 1 did not take"), std::string::npos) << error.what();
}

// Of a reduction that lacks a contribution the message says which.
TEST(StreamOrderFailure, AReductionNamesWhatIsMissing) {
  ClusterOptions options;
  options.transport = "stream";
  options.operation_timeout = 300ms;
  options.finalize = false;
  const Batch batch{{0, 24}, {}, Partition::contiguous, {4, 2, 8, 16}};
  const auto thrown = run_ranks(options, [&](Communicator& comm) {
    Member m(comm, batch);
    const Tensor mine = Tensor::allocate(comm.device(), DType::f32, {m.plan.landed_rows(), wide});
    std::fill_n(mine.data_as<float>(), mine.elements(), 1.0F);
    const Tensor sum = Tensor::allocate(comm.device(), DType::f32, {m.plan.rows(), wide});
    const ReduceField field{"dkv", mine, sum};
    Reduction reduction = comm.reduce(m.plan, {&field, 1}, m.stream);
    for (const ChunkTransfer& t : m.plan.arrivals()) {
      if (comm.rank() == 0 || t.chunk != 1) reduction.submit(t.chunk, m.stream);
    }
    if (comm.rank() == 1) {
      while (comm.status().ok()) std::this_thread::sleep_for(5ms);
      return;
    }
    const Work work = reduction.finish(m.stream);
    work.wait(m.stream);
    m.stream.synchronize(soon());
    work.synchronize(soon());
  });
  const Error error = error_of(thrown[0]);
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_NE(std::string(error.what()).find("dkv chunk 1 from rank 1"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace tandem

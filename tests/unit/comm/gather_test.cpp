// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "support/cluster.hpp"
#include "support/random.hpp"
#include "unit/comm/batches.hpp"

namespace tandem {
namespace {

using testing::Batch;
using testing::ClusterOptions;
using testing::run_cluster;
using testing::soon;

constexpr std::int64_t wide = 5;

// The value of a column of a global row, different in every operation.
float value_of(std::int64_t position, std::int64_t column, int op) {
  return static_cast<float>(position * 8 + column) + static_cast<float>(op) * 0.5F;
}

BatchSpec spec() {
  return {{{"index_k", DType::f32, 1, DType::f32}, {"kv", DType::f32, wide, DType::f32}}, {}, "test"};
}

struct Sources {
  Tensor index_k, kv;
};

Sources make_sources(const Communicator& comm, const Plan& plan, int op) {
  Sources s{Tensor::allocate(comm.device(), DType::f32, {plan.rows(), 1}),
            Tensor::allocate(comm.device(), DType::f32, {plan.rows(), wide})};
  for (std::int64_t i = 0; i < plan.rows(); ++i) {
    const std::int64_t p = plan.layout().global_position(plan.rank(), i);
    s.index_k.data_as<float>()[i] = value_of(p, 7, op);
    for (std::int64_t c = 0; c < wide; ++c) s.kv.data_as<float>()[i * wide + c] = value_of(p, c, op);
  }
  return s;
}

void poison(const Tensor& t) {
  for (std::int64_t i = 0; i < t.elements(); ++i) t.data_as<float>()[i] = std::numeric_limits<float>::quiet_NaN();
}

// Compares landed rows with what the layout says they are.
void expect_landed(const Plan& plan, const Tensor& index_k, const Tensor& kv, int op) {
  for (std::int64_t i = 0; i < plan.landed_rows(); ++i) {
    const std::int64_t p = plan.to_global(i);
    ASSERT_EQ(index_k.data_as<float>()[i], value_of(p, 7, op)) << "index_k of position " << p << " in op " << op;
    for (std::int64_t c = 0; c < wide; ++c) {
      ASSERT_EQ(kv.data_as<float>()[i * wide + c], value_of(p, c, op)) << "kv of position " << p << " in op " << op;
    }
  }
}

struct Case {
  const char* transport;
  int queues;
};

class Gather : public ::testing::TestWithParam<Case> {
 protected:
  ClusterOptions cluster(int ranks) const {
    ClusterOptions o;
    o.ranks = ranks;
    o.transport = GetParam().transport;
    o.queues = GetParam().queues;
    if (!o.transport.ends_with("tcp"))
      o.transport_options = {{"delay_us", "300"}, {"seed", std::to_string(testing::test_seed())}};
    return o;
  }
};

// Operations follow each other without a wait between them; slots are poisoned before each; a late rank holds nobody
// up.
TEST_P(Gather, LandsEveryNeededRowInOrderOfPosition) {
  auto rng = testing::test_rng(1);
  for (int round = 0; round < 6; ++round) {
    const int ranks = 1 + round % 5;
    const Batch batch = testing::random_batch(rng);
    const int late = static_cast<int>(rng() % static_cast<unsigned>(ranks));
    run_cluster(cluster(ranks), [&](Communicator& comm) {
      const Plan plan = batch.plan(comm.rank(), ranks);
      const Prepared prepared = comm.prepare(plan, spec());
      const Stream stream = comm.device().create_stream();
      constexpr int ops = 4;
      std::vector<Sources> sources;
      std::vector<Work> works;
      std::vector<std::array<Tensor, 2>> copies;
      for (int op = 0; op < ops; ++op) {
        sources.push_back(make_sources(comm, plan, op));
        copies.push_back({Tensor::allocate(comm.device(), DType::f32, {plan.landed_rows(), 1}),
                          Tensor::allocate(comm.device(), DType::f32, {plan.landed_rows(), wide})});
      }
      if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      auto consume = [&](int op) {
        const auto i = static_cast<std::size_t>(op);
        for (const ChunkTransfer& a : plan.arrivals()) works[i].wait(stream, "index_k", a.chunk);
        works[i].wait(stream, "kv");
        stream.run([&copies, i, from_k = works[i].landed("index_k"), from_kv = works[i].landed("kv")] {
          if (from_k.elements() == 0) return;
          std::memcpy(copies[i][0].data(), from_k.data(),
                      from_k.row_bytes() * static_cast<std::size_t>(from_k.size(0)));
          std::memcpy(copies[i][1].data(), from_kv.data(),
                      from_kv.row_bytes() * static_cast<std::size_t>(from_kv.size(0)));
          poison(from_k);
          poison(from_kv);
        });
      };
      for (int op = 0; op < ops; ++op) {
        const auto i = static_cast<std::size_t>(op);
        const std::vector<GatherField> fields{{"index_k", sources[i].index_k, {}}, {"kv", sources[i].kv, {}}};
        works.push_back(comm.gather(plan, fields, stream));
        if (op > 0) consume(op - 1);  // op is enqueued before the waits of op - 1
      }
      consume(ops - 1);
      stream.synchronize(soon());
      for (int op = 0; op < ops; ++op) {
        const auto i = static_cast<std::size_t>(op);
        works[i].synchronize(soon());
        expect_landed(plan, copies[i][0], copies[i][1], op);
        EXPECT_EQ(works[i].received_bytes(), static_cast<std::uint64_t>(plan.received_rows()) * 4 * (1 + wide));
        EXPECT_EQ(works[i].sent_bytes(), static_cast<std::uint64_t>(plan.sent_rows()) * 4 * (1 + wide));
        if (plan.received_rows() > 0) {
          EXPECT_EQ(works[i].paths(), std::vector<std::string>{testing::path_of(GetParam().transport)});
        }
      }
    });
  }
}

TEST_P(Gather, LandsInTheCallersMemoryAndTakesStridedSources) {
  const Batch batch{{0, 30, 41}, {}, Partition::zigzag, {4, 2, 8, 16}};
  run_cluster(cluster(3), [&](Communicator& comm) {
    const Plan plan = batch.plan(comm.rank(), 3);
    comm.prepare(plan, spec());
    const Stream stream = comm.device().create_stream();
    const Sources dense = make_sources(comm, plan, 0);
    // kv rows lie 8 floats apart.
    std::vector<float> apart(static_cast<std::size_t>(plan.rows() * 8), -1.0F);
    for (std::int64_t i = 0; i < plan.rows(); ++i) {
      for (std::int64_t c = 0; c < wide; ++c)
        apart[static_cast<std::size_t>(i * 8 + c)] = dense.kv.data_as<float>()[i * wide + c];
    }
    const Tensor kv = Tensor::from_raw(apart.data(), DType::f32, {plan.rows(), wide}, {8, 1});
    constexpr std::size_t offset = 1024;  // the same on all ranks
    const std::size_t bytes = static_cast<std::size_t>(plan.landed_rows() * wide) * sizeof(float);
    const Tensor to = Tensor::view(comm.allocate(offset + bytes), offset, DType::f32, {plan.landed_rows(), wide});
    poison(to);
    const std::vector<GatherField> fields{{"index_k", dense.index_k, {}}, {"kv", kv, to}};
    const Work work = comm.gather(plan, fields, stream);
    work.wait(stream);
    stream.synchronize(soon());
    EXPECT_EQ(work.landed("kv").data(), to.data());
    expect_landed(plan, work.landed("index_k"), to, 0);
  });
}

// First a batch of which most transfers are packed, and own rows lie in many pieces; then random ones.
TEST_P(Gather, TakesRowsFromWhereTheyLand) {
  auto rng = testing::test_rng(4);
  const Batch packed{{0, 9, 20, 31, 37, 50, 66}, {}, Partition::zigzag, {20, 2, 8, 1}};
  for (int round = 0; round < 6; ++round) {
    const int ranks = round == 0 ? 3 : round;
    const Batch batch = round == 0 ? packed : testing::random_batch(rng);
    run_cluster(cluster(ranks), [&](Communicator& comm) {
      const Plan plan = batch.plan(comm.rank(), ranks);
      const Prepared prepared = comm.prepare(plan, spec());
      const Stream stream = comm.device().create_stream();
      const std::size_t bytes = static_cast<std::size_t>(plan.landed_rows() * wide) * sizeof(float);
      const Tensor kept = Tensor::view(comm.allocate(bytes), 0, DType::f32, {plan.landed_rows(), wide});
      for (int op = 0; op < 3; ++op) {
        // One field in the slot, the other where the caller keeps it.
        const Tensor index_k = prepared.landed(op % Prepared::slots, "index_k");
        const auto write = [&](const Tensor& to, auto value) {
          poison(to);
          for (std::int64_t i = 0; i < plan.rows(); ++i) {
            const std::int64_t p = plan.layout().global_position(plan.rank(), i);
            if (p < 0 || plan.to_landed(p) < 0) continue;  // a pad
            for (std::int64_t c = 0; c < to.size(1); ++c)
              to.data_as<float>()[plan.to_landed(p) * to.size(1) + c] = value(p, c);
          }
        };
        write(index_k, [&](std::int64_t p, std::int64_t) { return value_of(p, 7, op); });
        write(kept, [&](std::int64_t p, std::int64_t c) { return value_of(p, c, op); });
        const std::vector<GatherField> fields{{"index_k", {}, {}, true}, {"kv", {}, kept, true}};
        const Work work = comm.gather(plan, fields, stream);
        work.wait(stream);
        stream.synchronize(soon());
        EXPECT_EQ(work.landed("index_k").data(), index_k.data());
        expect_landed(plan, index_k, kept, op);
      }
    });
  }
}

TEST_P(Gather, RecordsASpanForEveryTransferAndWait) {
  const Batch batch{{0, 64}, {}, Partition::contiguous, {8, 2, 8, 16}};
  ClusterOptions options = cluster(4);
  options.trace = true;
  run_cluster(options, [&](Communicator& comm) {
    const Plan plan = batch.plan(comm.rank(), 4);
    comm.prepare(plan, spec());
    const Stream stream = comm.device().create_stream();
    const Sources s = make_sources(comm, plan, 0);
    const std::vector<GatherField> fields{{"index_k", s.index_k, {}}, {"kv", s.kv, {}}};
    const Work work = comm.gather(plan, fields, stream);
    work.wait(stream);
    stream.synchronize(soon());
    work.synchronize(soon());
    std::set<std::string> expected, names;
    std::uint64_t bytes = 0;
    for (const ChunkTransfer& a : plan.arrivals()) {
      if (a.step == 0) continue;
      for (const char* field : {"index_k", "kv"}) {
        expected.insert("gather/" + std::string(field) + "/" + std::to_string(a.chunk));
        expected.insert("wait/" + std::string(field) + "/" + std::to_string(a.chunk));
      }
    }
    for (const Span& span : comm.trace()->spans()) {
      names.insert(span.name);
      EXPECT_LE(span.begin_ns, span.end_ns);
      if (span.kind != SpanKind::transfer) continue;
      EXPECT_EQ(span.path, testing::path_of(GetParam().transport));
      bytes += span.bytes;
    }
    EXPECT_EQ(names, expected);
    EXPECT_EQ(bytes, work.received_bytes());
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Gather,
                         ::testing::Values(Case{"loopback", 0}, Case{"loopback", 1}, Case{"tcp", 0}, Case{"tcp", 1},
                                           Case{"stream", 0}, Case{"stream", 1}, Case{"grouped", 0},
                                           Case{"grouped", 1}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + (info.param.queues == 0 ? "_free" : "_one_queue");
                         });

INSTANTIATE_TEST_SUITE_P(Staged, Gather,
                         ::testing::Values(Case{"staged:loopback", 0}, Case{"staged:loopback", 1},
                                           Case{"staged:tcp", 0}, Case{"staged:tcp", 1}),
                         [](const auto& info) {
                           return testing::test_name_of(info.param.transport) +
                                  (info.param.queues == 0 ? "_free" : "_one_queue");
                         });

TEST(GatherUsage, RejectsWhatDoesNotFit) {
  const Batch batch{{0, 20}, {}, Partition::contiguous, {4, 2, 8, 16}};
  run_cluster({}, [&](Communicator& comm) {
    const Plan plan = batch.plan(comm.rank(), 2);
    const Stream stream = comm.device().create_stream();
    const Sources s = make_sources(comm, plan, 0);
    const std::vector<GatherField> good{{"index_k", s.index_k, {}}, {"kv", s.kv, {}}};
    auto code = [&](const std::vector<GatherField>& fields) {
      try {
        comm.gather(plan, fields, stream);
      } catch (const Error& e) {
        return e.code();
      }
      return ErrorCode::ok;
    };
    EXPECT_EQ(code(good), ErrorCode::invalid_usage) << "not prepared";
    comm.prepare(plan, spec());
    EXPECT_EQ(code({{"values", s.kv, {}}}), ErrorCode::invalid_usage) << "unknown field";
    EXPECT_EQ(code({{"kv", s.index_k, {}}}), ErrorCode::invalid_argument) << "wrong shape";
    EXPECT_EQ(code({{"kv", s.kv.rows(0, 1), {}}}), ErrorCode::invalid_argument) << "too few rows";
    EXPECT_EQ(code({{"kv", {}, {}}}), ErrorCode::invalid_argument) << "no tensor";
    EXPECT_EQ(code({{"kv", s.kv, {}, true}}), ErrorCode::invalid_argument) << "in place, with a source";
    EXPECT_EQ(code({{"kv", s.kv, s.index_k}}), ErrorCode::invalid_argument) << "destination of another shape";
    EXPECT_EQ(code(good), ErrorCode::ok);
    const Work work = comm.gather(plan, good, stream);
    EXPECT_THROW(work.wait(stream, "dkv"), Error);
    EXPECT_THROW(work.landed("dkv"), Error);
    stream.synchronize(soon());
    work.synchronize(soon());
  });
}

TEST(GatherUsage, OneRankMovesNothing) {
  const Batch batch{{0, 50}, {}, Partition::zigzag, {8, 2, 8, 16}};
  ClusterOptions options;
  options.ranks = 1;
  run_cluster(options, [&](Communicator& comm) {
    const Plan plan = batch.plan(0, 1);
    comm.prepare(plan, spec());
    const Stream stream = comm.device().create_stream();
    const Sources s = make_sources(comm, plan, 3);
    const std::vector<GatherField> fields{{"index_k", s.index_k, {}}, {"kv", s.kv, {}}};
    const Work work = comm.gather(plan, fields, stream);
    work.wait(stream);
    stream.synchronize(soon());
    EXPECT_EQ(work.received_bytes(), 0U);
    EXPECT_EQ(work.sent_bytes(), 0U);
    EXPECT_TRUE(work.paths().empty());
    expect_landed(plan, work.landed("index_k"), work.landed("kv"), 3);
  });
}

}  // namespace
}  // namespace tandem

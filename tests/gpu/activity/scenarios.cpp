// SPDX-License-Identifier: Apache-2.0
#include "gpu/activity/scenarios.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "gpu/activity/expectation.hpp"
#include "gpu/activity/recorder.hpp"
#include "gpu/p2p/kernels.hpp"
#include "tandem/communicator.hpp"

namespace tandem::testing_activity {

using testing_p2p::Arguments;

namespace {

using std::chrono::seconds;

void check(cudaError_t result, const char* call) { detail::cuda::check(result, call, 0); }
Deadline soon() { return Deadline::after(seconds(20)); }

int gpu_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

const std::vector<FieldSpec> gather_fields{{"index_k", DType::bf16, 128}, {"kv", DType::bf16, 576}};

BatchSpec batch(DType wire) {
  return {gather_fields, {{"dkv", DType::f32, 576, wire}, {"d_index_k", DType::f32, 128}}, "activities"};
}

/// One rank with its communicator, and the recorder, which has to start before streams wait.
struct Rank {
  explicit Rank(const Arguments& a)
      : arguments(a),
        gpus(gpu_count()),
        device(a.rank % gpus),
        rng(static_cast<std::uint64_t>(a.number("seed", 1))),
        comm(Communicator::from_environment(options())) {}

  CommunicatorOptions options() const {
    check(cudaSetDevice(device), "cudaSetDevice");
    CommunicatorOptions o;
    o.device = Device::cuda(device);
    o.rendezvous_timeout = seconds(30);
    o.operation_timeout = seconds(20);
    return o;
  }

  /// Equal on all ranks.
  Plan random_plan(Partition partition) {
    std::vector<std::int64_t> offsets{0};
    const auto documents = 1 + rng() % 3;
    for (std::size_t d = 0; d < documents; ++d)
      offsets.push_back(offsets.back() + 64 + static_cast<std::int64_t>(rng() % 400));
    PlanOptions o;
    o.chunk_tokens = static_cast<std::int64_t>(16 + rng() % 64);
    o.max_runs = arguments.number("max_runs", 16);
    return Plan(partition == Partition::zigzag ? SequenceLayout::zigzag(offsets, arguments.size)
                                               : SequenceLayout::contiguous(offsets, arguments.size),
                arguments.rank, o);
  }

  /// Runs `operation`, which ends with the stream idle, and compares what the GPU did meanwhile.
  template <class Operation>
  void expect_activities(const Stream& stream, const Expectation& expected, const std::string& what,
                         Operation operation) {
    stream.synchronize(soon());
    recorder.start();
    operation();
    stream.synchronize(soon());
    const std::vector<Activity> seen = recorder.stop();
    if (const std::string text = expected.difference(seen); !text.empty())
      throw std::runtime_error(fmt::format("{}: {}", what, text));
    ++operations;
    kernels += expected.kernels;
    for (const Activity& a : seen) {
      if (a.kind != Activity::Kind::copy) continue;
      ++copies;
      by_copy_engine += a.by_copy_engine ? 1 : 0;
    }
  }

  /// Some rank need not push: nobody sees the rows of the last one of a contiguous layout.
  void report() const {
    if (operations == 0 || (arguments.rank == 0 && copies == 0)) throw std::runtime_error("nothing was pushed");
    fmt::print("{} operations, {} kernels, {} pushes, {} of them on a channel of the copy engines\n", operations,
               kernels, copies, by_copy_engine);
  }

  const Arguments arguments;
  const int gpus;
  const int device;
  std::mt19937_64 rng;
  ActivityRecorder recorder;
  Communicator comm;
  std::uint64_t gathers = 0;
  std::size_t operations = 0, kernels = 0, copies = 0, by_copy_engine = 0;
};

/// The source row at a position, all of its elements alike: different for each field and operation.
std::uint16_t mark(std::int64_t position, std::size_t field, std::uint64_t op) {
  return static_cast<std::uint16_t>(position * 7 + static_cast<std::int64_t>(field * 31 + op * 101));
}

void fill_rows(const Tensor& rows, const Plan& plan, std::size_t field, std::uint64_t op) {
  std::vector<std::uint16_t> host(static_cast<std::size_t>(rows.elements()));
  for (std::int64_t i = 0; i < plan.rows(); ++i) {
    const auto width = static_cast<std::ptrdiff_t>(rows.row_elements());
    std::fill_n(host.begin() + i * width, width, mark(plan.layout().global_position(plan.rank(), i), field, op));
  }
  check(cudaMemcpy(rows.data(), host.data(), host.size() * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void check_rows(const Tensor& landed, const Plan& plan, std::size_t field, std::uint64_t op) {
  std::vector<std::uint16_t> host(static_cast<std::size_t>(landed.elements()));
  check(cudaMemcpy(host.data(), landed.data(), host.size() * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (std::size_t i = 0; i < host.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / landed.row_elements();
    if (host[i] != mark(plan.to_global(row), field, op))
      throw std::runtime_error(fmt::format("gather {}: landed row {} of field {} is wrong", op, row, field));
  }
}

/// One gather into the slots, recorded, and its rows checked.
void gather_once(Rank& rank, const Plan& plan, const Prepared& prepared, const Stream& stream, bool in_place) {
  const std::uint64_t op = rank.gathers++;
  const auto slot = static_cast<int>(op % Prepared::slots);
  const std::int64_t own = own_rows_begin(plan);
  std::vector<GatherField> fields;
  for (std::size_t f = 0; f < gather_fields.size(); ++f) {
    const Tensor landed = prepared.landed(slot, gather_fields[f].name);
    check(cudaMemset(landed.data(), 0xFF, static_cast<std::size_t>(landed.elements()) * 2), "cudaMemset");
    const Tensor source =
        in_place ? landed.rows(own, plan.rows())
                 : Tensor::allocate(rank.comm.device(), DType::bf16, {plan.rows(), gather_fields[f].row_elements});
    fill_rows(source, plan, f, op);
    fields.push_back({gather_fields[f].name, source, {}});
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  Work work;
  rank.expect_activities(stream, of_gather(plan, gather_fields, in_place, rank.gpus), fmt::format("gather {}", op),
                         [&] {
                           work = rank.comm.gather(plan, fields, stream);
                           for (const ChunkTransfer& t : plan.arrivals()) work.wait(stream, "kv", t.chunk);
                           work.wait(stream);
                         });
  for (std::size_t f = 0; f < fields.size(); ++f) check_rows(work.landed(fields[f].name), plan, f, op);
}

void gathers(Rank& rank) {
  for (int round = 0; round < 6; ++round) {
    const Plan plan = rank.random_plan(round % 2 == 0 ? Partition::zigzag : Partition::contiguous);
    const Prepared prepared = rank.comm.prepare(plan, batch(DType::f32));
    const Stream stream = rank.comm.device().create_stream();
    for (int n = 0; n < 2; ++n) gather_once(rank, plan, prepared, stream, false);
  }
}

void in_place(Rank& rank) {
  for (int round = 0; round < 6; ++round) {
    const std::vector<std::int64_t> offsets{0, 200 + static_cast<std::int64_t>(rank.rng() % 1000)};
    PlanOptions options;
    options.chunk_tokens = 64;
    const Plan plan(SequenceLayout::contiguous(offsets, rank.arguments.size), rank.arguments.rank, options);
    if (own_rows_begin(plan) < 0) throw std::runtime_error("own rows land apart: this test needs another layout");
    const Expectation expected = of_gather(plan, gather_fields, true, rank.gpus);
    if (expected.kernels != 0) throw std::runtime_error("something is packed: this test needs another layout");
    const Prepared prepared = rank.comm.prepare(plan, batch(DType::f32));
    const Stream stream = rank.comm.device().create_stream();
    for (int n = 0; n < 2; ++n) gather_once(rank, plan, prepared, stream, true);
  }
}

void reductions(Rank& rank) {
  for (int round = 0; round < 6; ++round) {
    const Plan plan = rank.random_plan(round % 2 == 0 ? Partition::zigzag : Partition::contiguous);
    const BatchSpec spec = batch(round % 3 == 0 ? DType::bf16 : DType::f32);
    rank.comm.prepare(plan, spec);
    const Stream stream = rank.comm.device().create_stream();
    std::vector<ReduceField> fields;
    for (const FieldSpec& f : spec.reduce) {
      fields.push_back({f.name, Tensor::allocate(rank.comm.device(), DType::f32, {plan.landed_rows(), f.row_elements}),
                        Tensor::allocate(rank.comm.device(), DType::f32, {plan.rows(), f.row_elements})});
      const Tensor& from = fields.back().contributions;
      check(cudaMemset(from.data(), 0, static_cast<std::size_t>(from.elements()) * 4), "cudaMemset");
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    rank.expect_activities(stream, of_reduction(plan, spec.reduce, rank.gpus), fmt::format("reduction {}", round), [&] {
      Reduction reduction = rank.comm.reduce(plan, fields, stream);
      for (const ChunkTransfer& t : plan.arrivals()) reduction.submit(t.chunk, stream);
      reduction.finish(stream).wait(stream);
    });
  }
}

/// What must not be there is noticed: without this, a recorder that sees nothing would pass.
void recorder(Rank& rank) {
  const Stream stream = rank.comm.device().create_stream();
  const auto native = static_cast<cudaStream_t>(stream.native());
  const Buffer memory = rank.comm.device().allocate(4096);
  auto* const at = static_cast<char*>(memory.data());
  const auto launch = [&] { testing_p2p::spin(native, 1000); };
  const auto copy = [&] { check(cudaMemcpyAsync(at, at + 2048, 1024, cudaMemcpyDeviceToDevice, native), "copy"); };
  const auto set = [&] { check(cudaMemsetAsync(at, 0, 512, native), "cudaMemsetAsync"); };
  rank.expect_activities(stream, {1, {{1024, false}}}, "a kernel and a copy", [&] {
    launch();
    copy();
  });
  const std::map<std::string, std::function<void()>> surplus{{"kernel", launch}, {"copy", copy}, {"set", set}};
  for (const auto& [name, enqueue] : surplus) {
    bool missed = true;
    try {
      rank.expect_activities(stream, {}, "a surplus", enqueue);
    } catch (const std::runtime_error& e) {
      missed = false;
      fmt::print("{}: {}\n", name, e.what());
    }
    if (missed) throw std::runtime_error(fmt::format("a {} that does not belong is not noticed", name));
  }
}

}  // namespace

int run_scenario(const Arguments& a) {
  try {
    static const std::map<std::string, void (*)(Rank&)> scenarios{
        {"recorder", recorder}, {"gathers", gathers}, {"in_place", in_place}, {"reductions", reductions}};
    const auto scenario = scenarios.at(a.scenario);
    Rank rank(a);
    scenario(rank);
    rank.report();
    rank.comm.finalize(soon());
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "rank {}: {}\n", a.rank, e.what());
    return 1;
  }
}

}  // namespace tandem::testing_activity

// SPDX-License-Identifier: Apache-2.0
#include "gpu/p2p/comm_scenarios.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "device/bf16.hpp"
#include "device/cuda/check.hpp"
#include "gpu/p2p/kernels.hpp"
#include "tandem/communicator.hpp"

namespace tandem::testing_p2p {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kv_width = 576, key_width = 128;

void check(cudaError_t result, const char* call) { detail::cuda::check(result, call, 0); }
Deadline soon() { return Deadline::after(seconds(20)); }

Device device_of(int rank) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  check(cudaSetDevice(rank % count), "cudaSetDevice");
  return Device::cuda(rank % count, {.poison = true});
}

/// Equal on all ranks.
SequenceLayout random_layout(std::mt19937_64& rng, int ranks) {
  std::vector<std::int64_t> offsets{0};
  const auto documents = 1 + rng() % 4;
  for (std::size_t d = 0; d < documents; ++d)
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(rng() % 5 == 0 ? 0 : rng() % 400));
  if (offsets.back() == 0) offsets.back() = 7;
  return rng() % 2 == 0 ? SequenceLayout::zigzag(offsets, ranks) : SequenceLayout::contiguous(offsets, ranks);
}

PlanOptions random_options(std::mt19937_64& rng) {
  PlanOptions o;
  o.chunk_tokens = static_cast<std::int64_t>(1 + rng() % 64);
  o.max_runs = static_cast<std::int64_t>(1 + rng() % 4);
  o.block_rows = 32;
  return o;
}

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  return x * 0xc4ceb9fe1a85ec53ULL;
}
/// The row of the batch at `position`, as 16-bit words.
std::uint16_t key_word(std::int64_t position, std::int64_t column, std::uint64_t op) {
  return static_cast<std::uint16_t>(mix(static_cast<std::uint64_t>(position * 4099 + column) + (op << 40)) >> 20);
}
/// What `rank` adds to it: of very different size, so that the order of adding shows in the last bits.
float share(int rank, std::int64_t position, std::int64_t column, std::uint64_t op) {
  const auto bits =
      mix(static_cast<std::uint64_t>(position * 4099 + column) + (op << 40) + (static_cast<std::uint64_t>(rank) << 56));
  return std::ldexp(1.0F + static_cast<float>(bits % 9973) / 9973.0F, static_cast<int>(bits >> 50) % 23 - 11) *
         ((bits & 1) != 0 ? 1.0F : -1.0F);
}

template <class T>
class Pinned {
 public:
  explicit Pinned(std::int64_t count) : bytes_(static_cast<std::size_t>(count) * sizeof(T)) {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, std::max(bytes_, sizeof(T))), "cudaMallocHost");
    data_ = static_cast<T*>(memory);
  }
  ~Pinned() { static_cast<void>(cudaFreeHost(data_)); }
  Pinned(const Pinned&) = delete;
  T* data() const { return data_; }
  T& operator[](std::int64_t i) const { return data_[i]; }
  std::size_t bytes() const { return bytes_; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_;
};

/// One gather and one reduction of a plan, with all memory they need, checked by the host.
class Case {
 public:
  Case(Communicator& comm, const Plan& plan, DType wire)
      : comm_(comm),
        plan_(plan),
        wire_(wire),
        source_(plan.rows() * kv_width),
        landed_(plan.landed_rows() * kv_width),
        shares_(plan.landed_rows() * key_width),
        sums_(plan.rows() * key_width) {
    const Device& device = comm.device();
    kv_ = Tensor::allocate(device, DType::bf16, {plan.rows(), kv_width});
    landed_kv_ = Tensor::allocate(device, DType::bf16, {plan.landed_rows(), kv_width});
    contributions_ = Tensor::allocate(device, DType::f32, {plan.landed_rows(), key_width});
    result_ = Tensor::allocate(device, DType::f32, {plan.rows(), key_width});
  }

  static BatchSpec spec(DType wire) {
    return {{{"kv", DType::bf16, kv_width}}, {{"dk", DType::f32, key_width, wire}}, "gpu test"};
  }

  /// What the operations read, in page-locked memory.
  void set(std::uint64_t op) {
    op_ = op;
    for (std::int64_t i = 0; i < plan_.rows(); ++i) {
      const std::int64_t p = plan_.layout().global_position(plan_.rank(), i);
      for (std::int64_t c = 0; c < kv_width; ++c) source_[i * kv_width + c] = key_word(p, c, op);
    }
    for (std::int64_t i = 0; i < plan_.landed_rows(); ++i) {
      for (std::int64_t c = 0; c < key_width; ++c)
        shares_[i * key_width + c] = share(plan_.rank(), plan_.to_global(i), c, op);
    }
    std::memset(landed_.data(), 0xFF, landed_.bytes());
    std::memset(sums_.data(), 0xFF, sums_.bytes());
  }

  /// Inputs to the GPU, gather, reduction. Nothing waits for a peer.
  void issue(const Stream& stream) {
    stream.copy(kv_.data(), source_.data(), source_.bytes());
    stream.copy(contributions_.data(), shares_.data(), shares_.bytes());
    const GatherField field{"kv", kv_, {}};
    gather_ = comm_.gather(plan_, {&field, 1}, stream);
    const ReduceField reduce{"dk", contributions_, result_};
    reduction_ = comm_.reduce(plan_, {&reduce, 1}, stream);
    for (std::size_t b = 0; b < plan_.query_blocks().size(); ++b) {
      for (const ChunkId chunk : plan_.final_after(b)) reduction_.submit(chunk, stream);
    }
  }

  /// Waits on the stream, and results to the host.
  void consume(const Stream& stream) {
    for (const ChunkTransfer& t : plan_.arrivals()) gather_.wait(stream, "kv", t.chunk);
    stream.copy(landed_.data(), gather_.landed("kv").data(), landed_.bytes());
    gather_.wait(stream);
    reduction_.finish(stream).wait(stream);
    stream.copy(sums_.data(), result_.data(), sums_.bytes());
  }

  void check_rows() const {
    for (std::int64_t i = 0; i < plan_.landed_rows(); ++i) {
      for (std::int64_t c = 0; c < kv_width; ++c) {
        if (landed_[i * kv_width + c] != key_word(plan_.to_global(i), c, op_))
          throw std::runtime_error(fmt::format("op {}: landed row {} column {} is wrong", op_, i, c));
      }
    }
    const std::vector<float> want = expected_sums();
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::memcmp(&want[i], &sums_[static_cast<std::int64_t>(i)], sizeof(float)) != 0)
        throw std::runtime_error(fmt::format("op {}: sum of row {} column {} is {}, not {}", op_, i / key_width,
                                             i % key_width, sums_[static_cast<std::int64_t>(i)], want[i]));
    }
  }

 private:
  // In the plan's order: departures, then own rows.
  std::vector<float> expected_sums() const {
    std::vector<float> sums(static_cast<std::size_t>(plan_.rows() * key_width));
    const auto add = [&](const ChunkTransfer& t, int rank, DType wire) {
      for (const Run& run : t.runs) {
        for (std::int64_t i = run.owner_row; i < run.owner_row + run.rows; ++i) {
          const std::int64_t p = plan_.layout().global_position(plan_.rank(), i);
          for (std::int64_t c = 0; c < key_width; ++c) {
            const float x = share(rank, p, c, op_);
            sums[static_cast<std::size_t>(i * key_width + c)] += wire == DType::bf16 ? detail::bf16_round(x) : x;
          }
        }
      }
    };
    for (const ChunkTransfer& t : plan_.departures()) add(t, t.peer, wire_);
    for (const ChunkTransfer& t : plan_.arrivals()) {
      if (t.step == 0) add(t, plan_.rank(), DType::f32);
    }
    return sums;
  }

  Communicator& comm_;
  const Plan plan_;
  const DType wire_;
  Pinned<std::uint16_t> source_, landed_;
  Pinned<float> shares_, sums_;
  Tensor kv_, landed_kv_, contributions_, result_;
  Work gather_;
  Reduction reduction_;
  std::uint64_t op_ = 0;
};

}  // namespace

Communicator make_communicator(const Arguments& a) {
  CommunicatorOptions options;
  options.device = device_of(a.rank);
  options.rendezvous_timeout = seconds(30);
  options.operation_timeout = milliseconds(a.number("timeout_ms", 20000));
  if (a.number("shared_gpus", 0) != 0) options.transport_options["nccl.shared_gpus"] = "1";
  for (const char* key : {"streams", "kernel_bytes"}) {
    if (a.numbers.contains(key))
      options.transport_options[fmt::format("cuda_p2p.{}", key)] = std::to_string(a.number(key, 0));
  }
  return Communicator::from_environment(options);
}

void collectives(const Arguments& a) {
  Communicator comm = make_communicator(a);
  std::mt19937_64 rng(static_cast<std::uint64_t>(a.number("seed", 1)));
  std::uint64_t op = 0;
  for (int round = 0; round < 8; ++round) {
    const SequenceLayout layout = random_layout(rng, a.size);
    const Plan plan(layout, a.rank, random_options(rng));
    const DType wire = rng() % 2 == 0 ? DType::f32 : DType::bf16;
    comm.prepare(plan, Case::spec(wire));
    const Stream stream = comm.device().create_stream();
    Case first(comm, plan, wire), second(comm, plan, wire);
    for (int pair = 0; pair < 4; ++pair) {
      if (a.number("late", -1) == a.rank) std::this_thread::sleep_for(milliseconds(20));
      first.set(op++);
      second.set(op++);
      // The second operations are issued before anything waits for the first.
      first.issue(stream);
      second.issue(stream);
      first.consume(stream);
      second.consume(stream);
      stream.synchronize(soon());
      first.check_rows();
      second.check_rows();
    }
  }
  fmt::print("{} operations, {}\n", op, comm.route((a.rank + 1) % a.size));
  comm.finalize(soon());
}

void captured(const Arguments& a) {
  Communicator comm = make_communicator(a);
  std::mt19937_64 rng(static_cast<std::uint64_t>(a.number("seed", 1)));
  const Plan plan(random_layout(rng, a.size), a.rank, random_options(rng));
  comm.prepare(plan, Case::spec(DType::f32));
  const Stream stream = comm.device().create_stream();
  Case first(comm, plan, DType::f32), second(comm, plan, DType::f32);
  const auto cuda = static_cast<cudaStream_t>(stream.native());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(cuda, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  first.issue(stream);
  second.issue(stream);
  first.consume(stream);
  second.consume(stream);
  check(cudaStreamEndCapture(cuda, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  std::uint64_t op = 0;
  for (long n = 0; n < a.number("replays", 100); ++n) {
    first.set(op++);
    second.set(op++);
    check(cudaGraphLaunch(executable, cuda), "cudaGraphLaunch");
    stream.synchronize(soon());
    // All of the first and last ones, a sample of the others.
    if (n < 10 || n % 50 == 0 || n + 1 == a.number("replays", 100)) {
      first.check_rows();
      second.check_rows();
    }
  }
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  fmt::print("{} operations\n", op);
  comm.barrier(soon());
  comm.finalize(soon());
}

void comm_death(const Arguments& a) {
  Arguments quick = a;
  quick.numbers["timeout_ms"] = 3000;
  Communicator comm = make_communicator(quick);
  std::mt19937_64 rng(3);
  const std::vector<std::int64_t> offsets{0, 300};
  const Plan plan(SequenceLayout::zigzag(offsets, a.size), a.rank, random_options(rng));
  comm.prepare(plan, Case::spec(DType::f32));
  const Stream stream = comm.device().create_stream();
  Case one(comm, plan, DType::f32);
  one.set(0);
  one.issue(stream);
  one.consume(stream);
  stream.synchronize(soon());
  one.check_rows();
  comm.barrier(soon());
  if (a.rank == 1) ::raise(SIGKILL);
  const auto before = std::chrono::steady_clock::now();
  try {
    one.set(1);
    one.issue(stream);
    one.consume(stream);
    stream.synchronize(soon());
  } catch (const Error& e) {
    fmt::print("while issuing: {}\n", e.what());
  }
  while (comm.status().ok() && std::chrono::steady_clock::now() < before + seconds(5))
    std::this_thread::sleep_for(milliseconds(1));
  const Status status = comm.status();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
  if (status.code != ErrorCode::peer_failed || status.rank != 1)
    throw std::runtime_error(
        fmt::format("after {:.1f} s: {}: {}", took.count(), to_string(status.code), status.message));
  stream.synchronize(Deadline::after(seconds(2)));
  spin(static_cast<cudaStream_t>(stream.native()), 1000);
  stream.synchronize(Deadline::after(seconds(1)));
  fmt::print("{:.2f} s: {}\n", took.count(), status.message);
}

void ring(const Arguments& a) {
  Communicator comm = make_communicator(a);
  const Stream stream = comm.device().create_stream();
  constexpr std::int64_t words = 300'000;
  constexpr std::size_t bytes = words * sizeof(std::uint16_t);
  const Buffer blocks = comm.allocate(2 * bytes);
  const auto half = [&](long i) { return static_cast<char*>(blocks.data()) + static_cast<std::size_t>(i % 2) * bytes; };
  Pinned<std::uint16_t> own(words), seen(words);
  const int next = (a.rank + 1) % a.size, before = (a.rank + a.size - 1) % a.size;
  const auto step = [&](long n) {
    const std::vector<Transfer> transfers{{Transfer::Direction::send, next, half(n), bytes, half(n + 1)},
                                          {Transfer::Direction::receive, before, half(n + 1), bytes, nullptr}};
    comm.exchange(transfers, stream).wait(stream);
  };
  const auto expect = [&](int owner, std::uint64_t round) {
    stream.synchronize(soon());
    for (std::int64_t i = 0; i < words; ++i) {
      if (seen[i] != key_word(owner, i, round))
        throw std::runtime_error(fmt::format("round {}: word {} of rank {}'s block is wrong", round, i, owner));
    }
  };
  // Each step's block is checked; then a whole turn as one graph, which brings everybody's own block back.
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::int64_t i = 0; i < words; ++i) own[i] = key_word(a.rank, i, round);
    stream.copy(half(0), own.data(), bytes);
    for (long n = 0; n < 2L * a.size; ++n) {
      step(n);
      stream.copy(seen.data(), half(n + 1), bytes);
      expect(static_cast<int>((a.rank + 2L * a.size - n - 1) % a.size), round);
    }
  }
  const auto cuda = static_cast<cudaStream_t>(stream.native());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(cuda, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  stream.copy(half(0), own.data(), bytes);
  for (long n = 0; n < 2L * a.size; ++n) step(n);
  stream.copy(seen.data(), half(0), bytes);
  check(cudaStreamEndCapture(cuda, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (std::uint64_t round = 3; round < 100; ++round) {
    for (std::int64_t i = 0; i < words; ++i) own[i] = key_word(a.rank, i, round);
    std::memset(seen.data(), 0xFF, seen.bytes());
    check(cudaGraphLaunch(executable, cuda), "cudaGraphLaunch");
    expect(a.rank, round);
  }
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  comm.finalize(soon());
}

}  // namespace tandem::testing_p2p

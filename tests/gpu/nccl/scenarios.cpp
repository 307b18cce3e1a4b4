// SPDX-License-Identifier: Apache-2.0
#include "gpu/nccl/scenarios.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include "device/cuda/poll.hpp"
#include "gpu/gpu_support.hpp"
#include "gpu/p2p/comm_scenarios.hpp"
#include "gpu/p2p/kernels.hpp"
#include "transports/nccl/communicator.hpp"

namespace tandem::testing_p2p {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_gpu::Pinned;

void check(cudaError_t result, const char* call) { detail::cuda::check(result, call, 0); }

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

Deadline soon() { return Deadline::after(seconds(20)); }

/// True if the stream comes to its end in time.
bool drains(const Stream& stream, milliseconds patience) {
  try {
    stream.synchronize(Deadline::after(patience));
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::timeout) throw;
    return false;
  }
}

void fill(std::byte* to, std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(rng() >> 13);
}

/// One exchange between all ranks with the memory it needs.
class Round {
 public:
  static constexpr std::size_t most_bytes = 400'000;
  static constexpr int most_messages = 3;

  Round(Communicator& comm, std::size_t room)
      : comm_(comm),
        out_(room),
        in_(room),
        device_out_(comm.device().allocate(room)),
        device_in_(comm.device().allocate(room)) {}

  static std::size_t room(int ranks) { return static_cast<std::size_t>(ranks * most_messages) * most_bytes; }

  /// `rng` is in the same state on all ranks.
  void issue(std::mt19937_64& rng, const Stream& stream) {
    const int self = comm_.rank();
    std::vector<Transfer> transfers;
    std::size_t sent = 0, received = 0;
    seeds_.clear();
    for (int from = 0; from < comm_.size(); ++from) {
      for (int to = 0; to < comm_.size(); ++to) {
        const auto messages = rng() % (most_messages + 1);
        for (std::uint64_t m = 0; m < messages; ++m) {
          const std::size_t bytes = rng() % 5 == 0 ? 0 : rng() % most_bytes;
          const std::uint64_t seed = rng();
          if (from == self) {
            fill(out_.data() + sent, bytes, seed);
            transfers.push_back({Transfer::Direction::send, to, data(device_out_) + sent, bytes});
            sent += bytes;
          }
          if (to == self) {
            transfers.push_back({Transfer::Direction::receive, from, data(device_in_) + received, bytes});
            seeds_.emplace_back(bytes, seed);
            received += bytes;
          }
        }
      }
    }
    std::memset(in_.data(), 0xA5, in_.bytes());
    stream.copy(device_out_.data(), out_.data(), out_.bytes());
    stream.copy(device_in_.data(), in_.data(), in_.bytes());  // poison
    work_ = comm_.exchange(transfers, stream);
  }

  void consume(const Stream& stream) {
    work_.wait(stream);
    stream.copy(in_.data(), device_in_.data(), in_.bytes());
  }

  void check_bytes() const {
    std::vector<std::byte> want(most_bytes);
    std::size_t at = 0;
    for (std::size_t i = 0; i < seeds_.size(); ++i) {
      const auto [bytes, seed] = seeds_[i];
      fill(want.data(), bytes, seed);
      require(std::memcmp(want.data(), in_.data() + at, bytes) == 0, fmt::format("message {} is wrong", i));
      at += bytes;
    }
  }

 private:
  static std::byte* data(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data()); }

  Communicator& comm_;
  Pinned<std::byte> out_, in_;
  Buffer device_out_, device_in_;
  std::vector<std::pair<std::size_t, std::uint64_t>> seeds_;
  Work work_;
};

/// One message from each of two ranks to the other.
class Pair {
 public:
  Pair(Communicator& comm, std::size_t sent, std::size_t received)
      : comm_(comm), sent_(comm.device().allocate(sent)), received_(comm.device().allocate(received)) {}
  Work exchange(const Stream& stream) {
    const int peer = 1 - comm_.rank();
    const Transfer transfers[] = {{Transfer::Direction::send, peer, sent_.data(), sent_.bytes()},
                                  {Transfer::Direction::receive, peer, received_.data(), received_.bytes()}};
    return comm_.exchange(transfers, stream);
  }

 private:
  Communicator& comm_;
  Buffer sent_, received_;
};

/// The status of a communicator that is to fail soon.
Status failure_of(const Communicator& comm, milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (comm.status().ok() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
  const Status status = comm.status();
  fmt::print("{}: {}\n", to_string(status.code), status.message);
  return status;
}

void expect_usable(const Stream& stream) {
  require(drains(stream, seconds(2)), "the stream was not released");
  spin(static_cast<cudaStream_t>(stream.native()), 1000);
  require(drains(stream, seconds(1)), "the GPU is of no use any more");
}

}  // namespace

void exchanges(const Arguments& a) {
  Communicator comm = make_communicator(a);
  std::mt19937_64 rng(static_cast<std::uint64_t>(a.number("seed", 1)));
  const Stream stream = comm.device().create_stream();
  Round first(comm, Round::room(a.size)), second(comm, Round::room(a.size));
  for (int n = 0; n < 6; ++n) {
    first.issue(rng, stream);
    second.issue(rng, stream);
    first.consume(stream);
    second.consume(stream);
    stream.synchronize(soon());
    first.check_bytes();
    second.check_bytes();
  }
  comm.finalize(soon());
}

void stuck(const Arguments& a) {
  Communicator comm = make_communicator(a);
  const Stream stream = comm.device().create_stream();
  Pair pair(comm, 5000, 5000);
  if (a.rank == 0) {
    pair.exchange(stream).wait(stream);
    require(!drains(stream, milliseconds(300)), "there was nobody to exchange with");
    const auto before = std::chrono::steady_clock::now();
    comm.abort("the test says so");
    require(drains(stream, seconds(1)), "abort did not release the stream within a second");
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - before;
    fmt::print("released after {:.2f} ms\n", took.count());
  }
  require(failure_of(comm, seconds(10)).code == ErrorCode::aborted, "no abort was reported");
  expect_usable(stream);
}

void mismatch(const Arguments& a) {
  Communicator comm = make_communicator(a);
  const Stream stream = comm.device().create_stream();
  Pair pair(comm, a.rank == 0 ? 1000 : 3000, a.rank == 0 ? 3000 : 2000);
  try {
    pair.exchange(stream).wait(stream);
  } catch (const Error& e) {  // the later one of the two may be told at once
    require(e.code() == ErrorCode::transport, e.what());
  }
  require(!failure_of(comm, seconds(5)).ok(), "nobody minded that messages were not alike");
  expect_usable(stream);
}

void reported(const Arguments& a) {
  Communicator comm = make_communicator(a);
  const Stream stream = comm.device().create_stream();
  Pair pair(comm, 1000, 1000);
  pair.exchange(stream).wait(stream);
  const Status status = failure_of(comm, seconds(3));
  require(status.code == ErrorCode::peer_failed || status.code == ErrorCode::aborted, "NCCL's error was not reported");
  expect_usable(stream);
}

void two_communicators(const Arguments& a) {
  Communicator first = make_communicator(a);
  std::optional<Communicator> second = first.split(0, a.rank);
  const Stream one = first.device().create_stream(), two = first.device().create_stream();
  Pair on_first(first, 100'000, 100'000), on_second(*second, 100'000, 100'000);
  const bool reversed = a.number("reversed", 0) != 0;
  Work works[2];
  for (int n = 0; n < 20; ++n) {
    const bool second_first = reversed && a.rank == 0;
    if (second_first) works[1] = on_second.exchange(two);
    works[0] = on_first.exchange(one);
    if (!second_first) works[1] = on_second.exchange(two);
    works[0].wait(one);
    works[1].wait(two);
  }
  const bool done = drains(one, milliseconds(reversed ? 500 : 10'000)) && drains(two, milliseconds(500));
  require(done != reversed, reversed ? "the order of launches made no difference" : "exchanges got stuck");
  if (!reversed) return;
  first.abort("the test says so");
  second->abort("the test says so");
  expect_usable(one);
  expect_usable(two);
}

void refused(const Arguments& a) {
  try {
    make_communicator(a);
  } catch (const Error& e) {
    fmt::print("{}: {}\n", to_string(e.code()), e.what());
    return;
  }
  throw std::runtime_error("there is a communicator");
}

void alone(const Arguments&) {
  const nccl::Library& library = nccl::library();
  const auto context = detail::cuda::Context::open(0);
  check(cudaSetDevice(0), "cudaSetDevice");
  const Device device = Device::cuda(0);
  const Stream stream = device.create_stream();
  const auto cuda = static_cast<cudaStream_t>(stream.native());
  ncclUniqueId id{};
  require(library.ncclGetUniqueId(&id) == ncclSuccess, "no unique id");
  nccl::NcclCommunicator comm(library, context);
  comm.start(id, 0, 1);
  require(detail::cuda::poll_until(soon(), [&] { return comm.settled(); }), "no communicator in time");
  constexpr std::size_t bytes = 1'000'003;
  Pinned<std::byte> out(bytes), in(bytes);
  const Buffer from = device.allocate(bytes), to = device.allocate(bytes);
  tandem_transfer transfers[2]{};
  transfers[0].direction = TANDEM_SEND;
  transfers[0].buffer = from.data();
  transfers[1].direction = TANDEM_RECEIVE;
  transfers[1].buffer = to.data();
  transfers[0].bytes = transfers[1].bytes = bytes;
  const auto enqueue = [&] {
    stream.copy(from.data(), out.data(), bytes);
    check(cudaMemsetAsync(to.data(), 0xA5, bytes, cuda), "cudaMemsetAsync");
    comm.launch(transfers, cuda, soon());
    stream.copy(in.data(), to.data(), bytes);
  };
  const auto check_bytes = [&](const char* how) {
    stream.synchronize(soon());
    require(std::memcmp(out.data(), in.data(), bytes) == 0, fmt::format("bytes sent {} were wrong", how));
  };
  fill(out.data(), bytes, 1);
  enqueue();
  check_bytes("eagerly");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(cuda, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue();
  check(cudaStreamEndCapture(cuda, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (std::uint64_t n = 2; n < 20; ++n) {
    fill(out.data(), bytes, n);
    check(cudaGraphLaunch(executable, cuda), "cudaGraphLaunch");
    check_bytes("in a graph");
  }
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  spin(cuda, 300'000'000);
  enqueue();
  comm.abort();
  require(drains(stream, seconds(5)), "the stream did not end after the abort");
  fmt::print("NCCL {} of {}\n", nccl::version_text(library.version), library.path);
}

}  // namespace tandem::testing_p2p

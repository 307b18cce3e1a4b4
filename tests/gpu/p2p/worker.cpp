// SPDX-License-Identifier: Apache-2.0
#include "gpu/p2p/worker.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "gpu/p2p/kernels.hpp"

extern "C" const tandem_transport* tandem_transport_query_v0_cuda_p2p(void);

namespace tandem::testing_p2p {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds patience{30};

void check(cudaError_t result, const char* call) { detail::cuda::check(result, call, 0); }

void expect_ok(tandem_status status, const char* call) {
  if (status != TANDEM_OK) throw std::runtime_error(fmt::format("{} returned {}", call, status));
}

template <class Done>
void wait_for(const std::string& what, Done done) {
  const auto deadline = Clock::now() + patience;
  while (!done()) {
    if (Clock::now() > deadline) throw std::runtime_error("gave up waiting for " + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Device choose_device(int rank) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  const int ordinal = rank % count;
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  return Device::cuda(ordinal, {.poison = true});
}

}  // namespace

Worker::Worker(const Arguments& arguments, int chunks, std::size_t words)
    : arguments_(arguments),
      chunks_(chunks),
      words_(words),
      transport_(*tandem_transport_query_v0_cuda_p2p()),
      device_(choose_device(arguments.rank)) {
  services_ = {sizeof(services_), nullptr,
               [](void*, std::int32_t level, const char* text) {
                 if (level <= TANDEM_LOG_WARN) fmt::print(stderr, "{}\n", text);
               },
               nullptr};
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  sources_ = device_.allocate(static_cast<std::size_t>(chunks) * words * sizeof(std::uint32_t));
  numbers_ = device_.allocate(256);
  issued_step_ = static_cast<std::uint32_t*>(numbers_.data());
  consumed_step_ = issued_step_ + 16;
  wrong_ = reinterpret_cast<unsigned long long*>(issued_step_ + 32);
  check(cudaMemset(numbers_.data(), 0, 256), "cudaMemset");
  connect();
}

Worker::~Worker() {
  transport_.close(context_);
  static_cast<void>(cudaStreamDestroy(stream_));
}

std::vector<std::string> Worker::collect(const std::string& blob) {
  const int meeting = meetings_++;
  const auto file = [&](int rank) { return arguments_.meeting_point / fmt::format("{}.{}", meeting, rank); };
  const auto draft = arguments_.meeting_point / fmt::format("draft.{}", arguments_.rank);
  std::ofstream(draft, std::ios::binary) << blob;
  std::filesystem::rename(draft, file(arguments_.rank));
  std::vector<std::string> blobs;
  for (int p = 0; p < arguments_.size; ++p) {
    wait_for(fmt::format("rank {}", p), [&] { return std::filesystem::exists(file(p)); });
    std::ifstream in(file(p), std::ios::binary);
    blobs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return blobs;
}

void Worker::meet() { collect("here"); }

void Worker::connect() {
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "cudaGetDevice");
  tandem_open_params params{};
  params.struct_size = sizeof(params);
  params.rank = arguments_.rank;
  params.size = arguments_.size;
  params.group[0] = 42;
  params.cuda_device = ordinal;
  expect_ok(transport_.open(&services_, &params, &context_), "open");
  const auto with_all = [&](auto write, auto use) {
    std::string blob(4096, '\0');
    std::uint64_t bytes = blob.size();
    expect_ok(write(blob.data(), &bytes), "writing a blob");
    blob.resize(bytes);
    const auto blobs = collect(blob);
    std::vector<const void*> data;
    std::vector<std::uint64_t> sizes;
    for (const auto& b : blobs) {
      data.push_back(b.data());
      sizes.push_back(b.size());
    }
    expect_ok(use(data.data(), sizes.data()), "using the blobs");
  };
  with_all(
      [&](void* out, std::uint64_t* bytes) { return transport_.address(context_, out, bytes); },
      [&](const void* const* data, const std::uint64_t* sizes) { return transport_.connect(context_, data, sizes); });
  for (int p = 0; p < arguments_.size; ++p) {
    wait_for("a connection", [&] {
      const auto status = transport_.connect_test(context_, p);
      if (status != TANDEM_IN_PROGRESS) expect_ok(status, "connect_test");
      return status == TANDEM_OK;
    });
  }
  for (int lane = 0; lane < 2; ++lane) {
    const std::size_t bytes = static_cast<std::size_t>(arguments_.size * chunks_) * words_ * sizeof(std::uint32_t);
    expect_ok(transport_.allocate(context_, bytes, &regions_[lane], &region_ids_[lane]), "allocate");
    check(cudaMemset(regions_[lane], 0xFF, bytes), "cudaMemset");
    const auto id = region_ids_[lane];
    with_all([&](void* out, std::uint64_t* size) { return transport_.describe(context_, id, out, size); },
             [&](const void* const* data, const std::uint64_t* sizes) {
               return transport_.attach(context_, id, data, sizes);
             });
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  meet();
}

std::uint32_t* Worker::landed(int lane, int peer, int chunk) const {
  return static_cast<std::uint32_t*>(regions_[lane]) + static_cast<std::size_t>(peer * chunks_ + chunk) * words_;
}

void Worker::issue() {
  const int lane = static_cast<int>(issued_++ % 2);
  const int self = arguments_.rank, size = arguments_.size;
  auto* const source = static_cast<std::uint32_t*>(sources_.data());
  expect_ok(transport_.wait_sent(context_, stream_), "wait_sent");  // the sources are about to change
  for (int c = 0; c < chunks_; ++c)
    fill(stream_, source + static_cast<std::size_t>(c) * words_, words_, seed(self, c), issued_step_);
  advance(stream_, issued_step_);
  std::vector<tandem_transfer> transfers;
  const std::uint64_t bytes = words_ * sizeof(std::uint32_t);
  const auto add = [&](int peer, int direction, int c) {
    tandem_transfer t{};
    t.struct_size = sizeof(t);
    t.peer = peer;
    t.direction = direction;
    t.buffer = source + static_cast<std::size_t>(c) * words_;
    t.bytes = bytes;
    t.remote_region = region_ids_[lane];
    t.remote_offset = static_cast<std::uint64_t>(self * chunks_ + c) * bytes;
    t.flag = static_cast<std::uint32_t>(lane * chunks_ + c);
    transfers.push_back(t);
  };
  for (int step = 1; step < size; ++step) {
    for (int c = 0; c < chunks_; ++c) add((self + size - step) % size, TANDEM_RECEIVE, c);
  }
  for (int step = 1; step < size; ++step) {
    for (int c = 0; c < chunks_; ++c) add((self + step) % size, TANDEM_SEND, c);
  }
  const std::size_t receives = transfers.size() / 2;
  tandem_post_params params{};
  params.struct_size = sizeof(params);
  params.stream = stream_;
  params.lane = static_cast<std::uint32_t>(lane);
  params.transfers = transfers.data();
  params.count = receives;
  params.begin = 1;
  expect_ok(transport_.post(context_, &params), "post of the receives");
  params.transfers = transfers.data() + receives;
  params.begin = 0;
  params.first = params.last = 1;
  expect_ok(transport_.post(context_, &params), "post of the sends");
}

void Worker::consume() {
  const int lane = static_cast<int>(consumed_++ % 2);
  for (int step = 1; step < arguments_.size; ++step) {
    const int peer = (arguments_.rank + arguments_.size - step) % arguments_.size;
    for (int c = 0; c < chunks_; ++c) {
      const auto flag = static_cast<std::uint32_t>(lane * chunks_ + c);
      expect_ok(transport_.wait(context_, stream_, peer, flag), "wait");
      check_and_poison(stream_, landed(lane, peer, c), words_, seed(peer, c), consumed_step_, wrong_);
    }
  }
  advance(stream_, consumed_step_);
}

void Worker::wait_sent() { expect_ok(transport_.wait_sent(context_, stream_), "wait_sent"); }

bool Worker::drain(std::chrono::milliseconds patience_here) const {
  const auto deadline = Clock::now() + patience_here;
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) check(state, "cudaStreamQuery");
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Worker::expect_all_right() const {
  unsigned long long wrong = 0;
  std::uint32_t consumed = 0;
  check(cudaMemcpy(&wrong, wrong_, sizeof(wrong), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(&consumed, consumed_step_, sizeof(consumed), cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (consumed == 0) throw std::runtime_error("nothing was checked");
  if (wrong != 0) throw std::runtime_error(fmt::format("{} words of {} operations were wrong", wrong, consumed));
  fmt::print("{} operations right\n", consumed);
}

}  // namespace tandem::testing_p2p

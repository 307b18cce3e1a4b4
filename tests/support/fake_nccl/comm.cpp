// SPDX-License-Identifier: Apache-2.0
#include "support/fake_nccl/comm.hpp"

#include <cudaTypedefs.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

namespace tandem::fake_nccl {

long setting(const char* name, long otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::atol(text) : otherwise;
}

namespace {

void check(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(result));
}

using Word = std::atomic<std::uint32_t>;

CUstreamBatchMemOpParams write(Word& word, std::uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = reinterpret_cast<CUdeviceptr>(&word);
  op.writeValue.value = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return op;
}

CUstreamBatchMemOpParams wait(Word& word) {
  CUstreamBatchMemOpParams op{};
  op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = reinterpret_cast<CUdeviceptr>(&word);
  op.waitValue.value = 1;
  op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  return op;
}

void enqueue(cudaStream_t stream, std::vector<CUstreamBatchMemOpParams> ops) {
  static const auto batch = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 11070, cudaEnableDefault, &found),
          "cuStreamBatchMemOp");
    return reinterpret_cast<PFN_cuStreamBatchMemOp_v11070>(function);
  }();
  if (batch(stream, static_cast<unsigned>(ops.size()), ops.data(), 0) != CUDA_SUCCESS)
    throw std::runtime_error("cuStreamBatchMemOp failed");
}

unsigned long long capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

/// All groups of a process run one after the other in the order of their launches, whatever their communicator: as on a
/// GPU that has room for one of NCCL's kernels at a time.
class OneAtATime {
 public:
  void begin(cudaStream_t stream) {
    if (ended_ != nullptr && capture_ == capture_of(stream))
      check(cudaStreamWaitEvent(stream, ended_, 0), "cudaStreamWaitEvent");
  }
  void end(cudaStream_t stream) {
    if (ended_ == nullptr) check(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(ended_, stream), "cudaEventRecord");
    capture_ = capture_of(stream);
  }
  std::mutex mutex;

 private:
  cudaEvent_t ended_ = nullptr;
  unsigned long long capture_ = 0;
};

OneAtATime& one_at_a_time() {
  static OneAtATime order;
  return order;
}

}  // namespace
}  // namespace tandem::fake_nccl

using namespace tandem::fake_nccl;  // ncclComm is a name of the global namespace

ncclComm::ncclComm(const std::string& name, int size, int rank)
    : size_(size), rank_(rank), meeting_(std::make_shared<Meeting>(name, size)) {
  check(cudaHostRegister(meeting_->memory(), meeting_->bytes(), cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister");
  for (int p = 0; p < size; ++p) {
    out_.push_back(make_line());
    in_.push_back(make_line());
  }
  check(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  if (setting("TANDEM_FAKE_NCCL_FAIL_INIT", 0) != 0) error_ = ncclSystemError;
  meeting_->attach(rank, name);
}

ncclComm::Line ncclComm::make_line() const {
  Line line;
  check(cudaStreamCreateWithFlags(&line.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaEventCreateWithFlags(&line.done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return line;
}

ncclResult_t ncclComm::fail(ncclResult_t error, const char* text) {
  std::fprintf(stderr, "fake nccl: rank %d: %s\n", rank_, text);
  error_ = error;
  return error;
}

ncclResult_t ncclComm::state() {
  if (error_ != ncclSuccess) return error_;
  if (meeting_->broken()) return ncclInvalidUsage;
  if (!met_ && !meeting_->complete()) return ncclInProgress;
  met_ = true;
  if (finalizing_ && !meeting_->all_finalized()) return ncclInProgress;
  if (asks_left_ > 0) {
    --asks_left_;
    return ncclInProgress;
  }
  return hangs_ && Clock::now() > hangs_since_ + std::chrono::milliseconds(200) ? ncclRemoteError : ncclSuccess;
}

ncclResult_t ncclComm::finalize() {
  finalizing_ = true;
  meeting_->finalize();
  return ncclInProgress;
}

void ncclComm::send(int peer, const Piece& piece) {
  Pipe& pipe = meeting_->pipe(rank_, peer);
  const cudaStream_t stream = out_[static_cast<std::size_t>(peer)].stream;
  enqueue(stream, {wait(pipe.empty), write(pipe.empty, 0)});
  check(cudaMemcpyAsync(meeting_->slot(rank_, peer), piece.memory, piece.bytes, cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
  enqueue(stream, {write(pipe.full, 1)});
}

void ncclComm::receive(int peer, const Piece& piece) {
  Pipe& pipe = meeting_->pipe(peer, rank_);
  const cudaStream_t stream = in_[static_cast<std::size_t>(peer)].stream;
  enqueue(stream, {wait(pipe.full), write(pipe.full, 0)});
  check(cudaMemcpyAsync(piece.memory, meeting_->slot(peer, rank_), piece.bytes, cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
  enqueue(stream, {write(pipe.empty, 1)});
}

ncclResult_t ncclComm::launch(std::span<const Message> messages) {
  if (!met_ || asks_left_ > 0) return fail(ncclInvalidUsage, "a group is started while another call is in progress");
  if (const ncclResult_t now = state(); now != ncclSuccess) return now;
  const cudaStream_t stream = messages.front().stream;
  std::vector<std::vector<Piece>> out(static_cast<std::size_t>(size_)), in(static_cast<std::size_t>(size_));
  for (const Message& m : messages) {
    if (m.stream != stream) return fail(ncclInvalidUsage, "a group on two streams is more than this can do");
    const std::uint64_t what = m.bytes << 8 | static_cast<std::uint64_t>(m.type);
    meeting_->note(m.sends ? rank_ : m.peer, m.sends ? m.peer : rank_, m.sends, what);
    auto& pieces = (m.sends ? out : in)[static_cast<std::size_t>(m.peer)];
    for (std::size_t at = 0; at < m.bytes; at += Meeting::slot_bytes)
      pieces.push_back({m.memory + at, std::min(Meeting::slot_bytes, m.bytes - at)});
  }
  const std::lock_guard lock(one_at_a_time().mutex);
  one_at_a_time().begin(stream);
  if (const long most = setting("TANDEM_FAKE_NCCL_ERROR_AFTER", -1); ++groups_ > most && most >= 0) {
    enqueue(stream, {wait(meeting_->never(rank_))});
    if (!std::exchange(hangs_, true)) hangs_since_ = Clock::now();
    return ncclInProgress;
  }
  check(cudaEventRecord(begun_, stream), "cudaEventRecord");
  const auto each_line = [&](auto use) {
    for (std::size_t p = 0; p < out.size(); ++p) {
      if (!out[p].empty()) use(out_[p]);
      if (!in[p].empty()) use(in_[p]);
    }
  };
  each_line([&](const Line& line) { check(cudaStreamWaitEvent(line.stream, begun_, 0), "cudaStreamWaitEvent"); });
  // In turns, sends first: where all streams share a queue, a receive must not stand before what its peer waits for.
  bool more = true;
  for (std::size_t turn = 0; more; ++turn) {
    more = false;
    for (int p = 0; p < size_; ++p) {
      const auto& pieces = out[static_cast<std::size_t>(p)];
      if (turn < pieces.size()) send(p, pieces[turn]);
      more = more || turn + 1 < pieces.size();
    }
    for (int p = 0; p < size_; ++p) {
      const auto& pieces = in[static_cast<std::size_t>(p)];
      if (turn < pieces.size()) receive(p, pieces[turn]);
      more = more || turn + 1 < pieces.size();
    }
  }
  each_line([&](const Line& line) {
    check(cudaEventRecord(line.done, line.stream), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream, line.done, 0), "cudaStreamWaitEvent");
  });
  one_at_a_time().end(stream);
  asks_left_ = 2;
  return ncclInProgress;
}

void ncclComm::release() {
  if (released_.exchange(true)) return;
  // Graphs come to these words as well, whenever they run: never again does anyone wait here.
  std::thread([meeting = meeting_, rank = rank_, size = size_] {
    while (true) {
      meeting->never(rank) = 1;
      for (int p = 0; p < size; ++p) {
        meeting->pipe(p, rank).full = 1;
        meeting->pipe(rank, p).empty = 1;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }).detach();
}

bool ncclComm::drain() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const auto idle = [](const Line& line) { return cudaStreamQuery(line.stream) != cudaErrorNotReady; };
  while (!std::all_of(out_.begin(), out_.end(), idle) || !std::all_of(in_.begin(), in_.end(), idle)) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void ncclComm::free() {
  for (const std::vector<Line>* lines : {&out_, &in_}) {
    for (const Line& line : *lines) {
      static_cast<void>(cudaStreamDestroy(line.stream));
      static_cast<void>(cudaEventDestroy(line.done));
    }
  }
  static_cast<void>(cudaEventDestroy(begun_));
  // The mapping stays: peers' graphs and the thread of release() may still come to it.
}

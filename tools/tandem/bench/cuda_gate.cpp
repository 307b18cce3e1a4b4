// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/cuda_gate.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/fd.hpp"
#include "base/thread.hpp"
#include "bootstrap/addresses.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/native.hpp"

namespace tandem::cli {

using detail::Fd;
using detail::cuda::check;
using detail::cuda::check_quietly;
using detail::cuda::driver;

namespace {

// Enqueueing an iteration takes far less, unless the queue is full.
constexpr std::chrono::milliseconds patience{100};
constexpr std::uint32_t far_ahead = 1U << 30;  // of every epoch: waits compare the difference, modulo 2^32
constexpr std::size_t line = 64;
constexpr std::size_t most_at_once = 255;  // operations of one batch that CUDA takes

using Word = std::atomic<std::uint32_t>;

// Where rank 0's memory is found by processes of the same host and user, and what proves that it is the right one.
std::string describe_fd(int fd, std::uint64_t secret) {
  return fmt::format("{}\n/proc/{}/fd/{}\n{}", detail::host_identity(), ::getpid(), fd, secret);
}

Fd open_described(const std::string& text, std::uint64_t& secret) {
  const std::size_t first = text.find('\n'), second = text.rfind('\n');
  secret = std::stoull(text.substr(second + 1));
  if (text.substr(0, first) != detail::host_identity()) return {};
  return Fd(::open(text.substr(first + 1, second - first - 1).c_str(), O_RDWR | O_CLOEXEC));
}

}  // namespace

/// Two words of each rank, "may go" and "has come here", and a secret at the end.
struct Gate::Words {
  Words(const detail::cuda::Context& c, BenchRanks& ranks) : context(c) {
    bytes = (2 * static_cast<std::size_t>(ranks.size()) + 1) * line;
    std::uint64_t secret = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
    Fd fd;
    std::string told;
    if (ranks.rank() == 0) {
      fd = Fd(::memfd_create("tandem-gate", MFD_CLOEXEC));
      if (fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 && map(fd)) {
        std::memcpy(memory + bytes - line, &secret, sizeof(secret));
        told = describe_fd(fd.get(), secret);
      }
    }
    told = ranks.from_first(told);
    if (ranks.rank() > 0 && !told.empty()) {
      fd = open_described(told, secret);
      if (fd.valid() && ::lseek(fd.get(), 0, SEEK_END) == static_cast<off_t>(bytes) && map(fd) &&
          std::memcmp(memory + bytes - line, &secret, sizeof(secret)) != 0)
        unmap();
    }
    const std::vector<std::string> mapped = ranks.all(memory != nullptr ? "yes" : "no");
    shared = std::all_of(mapped.begin(), mapped.end(), [](const std::string& m) { return m == "yes"; });
    if (!shared) {
      unmap();
      fd = Fd(::memfd_create("tandem-gate", MFD_CLOEXEC));
      if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || !map(fd))
        throw Error(ErrorCode::out_of_memory, "cannot make the memory of a gate", ranks.rank());
    }
    const detail::cuda::DeviceGuard guard(context);
    const cudaError_t result = cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (result != cudaSuccess) unmap();
    check(result, "cudaHostRegister", context.ordinal);
  }
  ~Words() {
    const detail::cuda::QuietDeviceGuard guard(context);
    if (guard) check_quietly(cudaHostUnregister(memory), "cudaHostUnregister", context.ordinal);
    unmap();
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  bool map(const Fd& fd) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (at == MAP_FAILED) return false;
    memory = static_cast<char*>(at);
    return true;
  }
  void unmap() {
    if (memory != nullptr) ::munmap(memory, bytes);
    memory = nullptr;
  }
  Word& go(int rank) const { return word(2 * static_cast<std::size_t>(rank)); }
  Word& here(int rank) const { return word(2 * static_cast<std::size_t>(rank) + 1); }
  Word& word(std::size_t i) const { return *reinterpret_cast<Word*>(memory + i * line); }

  const detail::cuda::Context context;
  char* memory = nullptr;
  std::size_t bytes = 0;
  bool shared = false;
};

Gate::Gate(const Device& device, BenchRanks& ranks)
    : context_(detail::cuda::native_stream(device.create_stream()).context),
      words_(std::make_unique<Words>(context_, ranks)),
      rank_(ranks.rank()),
      size_(ranks.size()),
      keeper_([this] { keep(); }) {}

Gate::~Gate() {
  release();
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  keeper_.join();
}

bool Gate::shared() const noexcept { return words_->shared; }

void Gate::close(const Stream& stream) {
  const std::uint32_t epoch = ++epoch_;
  const auto address = [](const Word& word) { return reinterpret_cast<CUdeviceptr>(&word); };
  std::vector<CUstreamBatchMemOpParams> ops;
  const auto wait = [&](const Word& word) {
    CUstreamBatchMemOpParams op{};
    op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    op.waitValue.address = address(word);
    op.waitValue.value = epoch;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops.push_back(op);
  };
  wait(words_->go(rank_));
  if (shared()) {
    CUstreamBatchMemOpParams op{};
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = address(words_->here(rank_));
    op.writeValue.value = epoch;
    op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    ops.push_back(op);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) wait(words_->here(r));
    }
  }
  const auto native = detail::cuda::native_stream(stream).handle;
  const detail::cuda::DeviceGuard guard(context_);
  for (std::size_t i = 0; i < ops.size(); i += most_at_once) {
    const auto count = static_cast<unsigned>(std::min(most_at_once, ops.size() - i));
    check(driver().cuStreamBatchMemOp(native, count, &ops[i], 0), "cuStreamBatchMemOp", context_.ordinal);
  }
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    opens_at_ = std::chrono::steady_clock::now() + patience;
  }
  changed_.notify_all();
}

void Gate::open() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, false)) words_->go(rank_).store(epoch_, std::memory_order_release);
}

void Gate::release() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  words_->go(rank_).store(epoch_ + far_ahead, std::memory_order_release);
  for (int r = 0; r < size_; ++r) words_->here(r).store(epoch_ + far_ahead, std::memory_order_release);
}

void Gate::keep() {
  detail::set_thread_name("tandem-gate");
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (!closed_) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, opens_at_) == std::cv_status::timeout && closed_ &&
               std::chrono::steady_clock::now() >= opens_at_) {
      closed_ = false;
      ++late_;
      words_->go(rank_).store(epoch_, std::memory_order_release);
    }
  }
}

}  // namespace tandem::cli

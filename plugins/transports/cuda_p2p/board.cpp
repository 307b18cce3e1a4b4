// SPDX-License-Identifier: Apache-2.0
#include "transports/cuda_p2p/board.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "device/cuda/check.hpp"
#include "tandem/error.hpp"

namespace tandem::cuda_p2p {

using detail::cuda::check;
using detail::cuda::check_quietly;

namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::transport, fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

}  // namespace

Board Board::create(int ranks, const detail::cuda::Context& context) {
  Fd fd(::memfd_create("tandem-flags", MFD_CLOEXEC));
  const std::size_t bytes = size_for(ranks);
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("cannot make shared flag memory");
  return map(std::move(fd), bytes, context);
}

Board Board::open(Fd fd, std::uint64_t bytes, int ranks, const detail::cuda::Context& context) {
  if (bytes != size_for(ranks)) {
    throw Error(ErrorCode::version_mismatch,
                fmt::format("flag memory of {} bytes where {} are expected", bytes, size_for(ranks)));
  }
  return map(std::move(fd), static_cast<std::size_t>(bytes), context);
}

Board Board::map(Fd fd, std::size_t bytes, const detail::cuda::Context& context) {
  Board board;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) fail("cannot map shared flag memory");
  board.fd_ = std::move(fd);
  board.bytes_ = bytes;
  board.context_ = context;
  const detail::cuda::DeviceGuard guard(context);
  const detail::cuda::RelaxedCapture relaxed;
  const cudaError_t registered = cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (registered != cudaSuccess) ::munmap(memory, bytes);
  check(registered, "cudaHostRegister", context.ordinal);
  board.memory_ = static_cast<char*>(memory);
  return board;
}

Board::~Board() {
  if (memory_ == nullptr) return;
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (guard) {
    const detail::cuda::RelaxedCapture relaxed;
    check_quietly(cudaHostUnregister(memory_), "cudaHostUnregister", context_.ordinal);
  }
  ::munmap(memory_, bytes_);
}

void Board::raise_all() const noexcept {
  for (std::size_t i = 0; i < bytes_ / line; ++i) word(0, i).store(1, std::memory_order_release);
}

void Board::swap(Board& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(context_, other.context_);
}

}  // namespace tandem::cuda_p2p

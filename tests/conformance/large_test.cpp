// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "conformance/setups.hpp"

namespace tandem::conformance {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

/// A long range of addresses over one window of memory, mapped again and again: costs no more than the window.
class Repeated {
 public:
  Repeated(std::size_t bytes, std::size_t window)
      : size_((bytes + window - 1) / window * window), fd_(::memfd_create("tandem_test", MFD_CLOEXEC)) {
    data_ = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ok_ = fd_ >= 0 && data_ != MAP_FAILED && ::ftruncate(fd_, static_cast<off_t>(window)) == 0;
    for (std::size_t at = 0; ok_ && at < size_; at += window)
      ok_ = ::mmap(data() + at, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) != MAP_FAILED;
  }
  ~Repeated() {
    ::munmap(data_, size_);
    ::close(fd_);
  }
  Repeated(const Repeated&) = delete;
  bool ok() const { return ok_; }
  char* data() { return static_cast<char*>(data_); }

 private:
  std::size_t size_;
  int fd_;
  void* data_ = nullptr;
  bool ok_ = false;
};

TEST_P(Conformance, MoreBytesThan31BitsCount) {
  if (thread_sanitized) GTEST_SKIP() << "SKIPPED: ThreadSanitizer's notes on so much memory need more than 24 GiB";
  constexpr std::size_t bytes = 2048 * mib + 17;
  // Windows of different lengths: what the last bytes leave behind differs from what any earlier ones left there.
  constexpr std::size_t from_window = 5 * mib, to_window = 3 * mib;
  Repeated from(bytes, from_window), to(bytes, to_window);
  ASSERT_TRUE(from.ok() && to.ok());
  const auto contents = pattern(0, 1, 1, 0, from_window);
  std::memcpy(from.data(), contents.data(), from_window);
  Mesh mesh(transport(), 2, options());
  ASSERT_TRUE(mesh.connected());
  auto& receive = mesh[1].post({receive_from(0, 1, to.data(), bytes)});
  auto& send = mesh[0].post({send_to(1, 1, from.data(), bytes)});
  ASSERT_TRUE(receive.wait(Deadline::after(std::chrono::seconds(120))));
  ASSERT_TRUE(send.wait());
  EXPECT_TRUE(receive.all_once_with(TANDEM_OK));
  EXPECT_TRUE(send.all_once_with(TANDEM_OK));
  std::size_t wrong = 0;
  for (std::size_t at = bytes - to_window; at < bytes; ++at) wrong += to.data()[at] != contents[at % from_window];
  EXPECT_EQ(wrong, 0U);
}

std::vector<Setup> large_setups() {
  return {{"loopback", &tandem_transport_query_v0_loopback, {}},
          {"tcp", &tandem_transport_query_v0_tcp, {{"unix_sockets", "0"}}},
          {"tcp_unix", &tandem_transport_query_v0_tcp, {}}};
}

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(large_setups()), setup_name);

}  // namespace
}  // namespace tandem::conformance

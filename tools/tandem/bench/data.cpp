// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/data.hpp"

#include <atomic>
#include <cstring>

#include "tandem/bench/cuda_parts.hpp"
#include "tandem/bench/pattern.hpp"

namespace tandem::cli {
namespace {

class HostData final : public BenchData {
 public:
  void fill(const Stream& stream, void* to, std::uint64_t bytes, std::uint64_t first, std::uint64_t salt) override {
    stream.run([=] {
      auto* const at = static_cast<std::uint8_t*>(to);
      std::uint64_t i = 0;
      for (; i + 8 <= bytes; i += 8) {
        const std::uint64_t word = pattern::bits(salt, (first + i) / 8);
        std::memcpy(at + i, &word, sizeof(word));
      }
      for (; i < bytes; ++i) at[i] = pattern::byte(salt, first + i);
    });
  }
  void fill_terms(const Stream& stream, float* to, std::uint64_t count, std::uint64_t first, int rank,
                  std::uint64_t salt) override {
    stream.run([=] {
      for (std::uint64_t i = 0; i < count; ++i) to[i] = pattern::term(salt, rank, first + i);
    });
  }
  void poison(const Stream& stream, void* to, std::uint64_t bytes) override {
    stream.run([=] { std::memset(to, 0xFF, static_cast<std::size_t>(bytes)); });
  }
  void check(const Stream& stream, const void* found, std::uint64_t bytes, std::uint64_t first,
             std::uint64_t salt) override {
    stream.run([=, wrong = wrong_] {
      const auto* const at = static_cast<const std::uint8_t*>(found);
      std::uint64_t count = 0;
      for (std::uint64_t i = 0; i < bytes; ++i) count += at[i] != pattern::byte(salt, first + i);
      *wrong += count;
    });
  }
  void check_sums(const Stream& stream, const float* found, std::uint64_t count, std::uint64_t first, int first_rank,
                  int ranks, std::uint64_t salt) override {
    stream.run([=, wrong = wrong_] {
      std::uint64_t bad = 0;
      for (std::uint64_t i = 0; i < count; ++i) bad += found[i] != pattern::sum(salt, first_rank, ranks, first + i);
      *wrong += bad;
    });
  }
  std::uint64_t take_wrong(const Stream& stream, Deadline deadline) override {
    stream.synchronize(deadline);
    return wrong_->exchange(0);
  }

 private:
  const std::shared_ptr<std::atomic<std::uint64_t>> wrong_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace

std::unique_ptr<BenchData> make_data(const Device& device) {
  if (device.kind() == DeviceKind::cuda) return make_cuda_data(device);
  return std::make_unique<HostData>();
}

}  // namespace tandem::cli

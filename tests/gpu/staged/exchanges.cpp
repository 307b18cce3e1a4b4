// SPDX-License-Identifier: Apache-2.0
#include "gpu/staged/exchanges.hpp"

#include <fmt/format.h>

#include <cstring>
#include <random>
#include <thread>

#include "comm/bundle.hpp"
#include "gpu/gpu_support.hpp"
#include "gpu/p2p/kernels.hpp"
#include "tandem/communicator.hpp"

namespace tandem::testing_p2p {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Words = testing_gpu::Pinned<std::uint32_t>;

std::uint32_t word_of(int from, int to, std::uint64_t op, std::size_t i) {
  const std::uint64_t x = (static_cast<std::uint64_t>(from * 64 + to) << 32 | op << 24) + i;
  return static_cast<std::uint32_t>((x * 0x9E3779B97F4A7C15U) >> 29);
}

/// Equal on all ranks: from one word to several pieces, some of them to the byte.
std::size_t random_words(std::mt19937_64& rng) {
  constexpr std::size_t piece = detail::Bundle::piece_bytes / sizeof(std::uint32_t);
  const std::size_t choices[] = {1, piece, 3 * piece, 1 + rng() % 1000, 1 + rng() % (2 * piece)};
  return choices[rng() % std::size(choices)];
}

/// One exchange with all peers, of as many words with each.
class Exchange {
 public:
  Exchange(Communicator& comm, std::size_t words, std::uint64_t op)
      : comm_(comm), words_(words), op_(op), host_(2 * static_cast<std::size_t>(comm.size()) * words) {
    memory_ = comm.device().allocate(host_.bytes());
    for (int peer = 0; peer < comm.size(); ++peer) {
      for (std::size_t i = 0; i < words; ++i) host_[at(peer, false) + i] = word_of(comm.rank(), peer, op, i);
      std::memset(&host_[at(peer, true)], 0xFF, words * sizeof(std::uint32_t));
    }
  }

  /// Words to the GPU, and the exchange; nothing waits for a peer.
  void issue(const Stream& stream) {
    stream.copy(memory_.data(), host_.data(), host_.bytes());
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < comm_.size(); ++peer) {
      if (peer == comm_.rank()) continue;
      for (const bool receive : {false, true}) {
        transfers.push_back({receive ? Transfer::Direction::receive : Transfer::Direction::send, peer,
                             static_cast<std::uint32_t*>(memory_.data()) + at(peer, receive),
                             words_ * sizeof(std::uint32_t)});
      }
    }
    work_ = comm_.exchange(transfers, stream);
  }

  void consume(const Stream& stream) {
    work_.wait(stream);
    stream.copy(host_.data(), memory_.data(), host_.bytes());
  }

  void check() const {
    for (int peer = 0; peer < comm_.size(); ++peer) {
      for (std::size_t i = 0; peer != comm_.rank() && i < words_; ++i) {
        if (host_[at(peer, true) + i] != word_of(peer, comm_.rank(), op_, i))
          throw std::runtime_error(fmt::format("op {}: word {} of {} from rank {} is wrong", op_, i, words_, peer));
      }
    }
  }

 private:
  std::size_t at(int peer, bool received) const {
    return (2 * static_cast<std::size_t>(peer) + (received ? 1 : 0)) * words_;
  }

  Communicator& comm_;
  const std::size_t words_;
  const std::uint64_t op_;
  Words host_;
  Buffer memory_;
  Work work_;
};

}  // namespace

void exchanges(const Arguments& a) {
  CommunicatorOptions options;
  options.device = Device::cuda(0, {.poison = true});
  options.rendezvous_timeout = seconds(30);
  options.operation_timeout = seconds(20);
  Communicator comm = Communicator::from_environment(options);
  const Stream stream = comm.device().create_stream();
  const long order = a.number("order", 0);
  std::mt19937_64 rng(static_cast<std::uint64_t>(a.number("seed", 1)));
  std::unique_ptr<Exchange> last;
  const auto finish = [&](Exchange& exchange) {
    exchange.consume(stream);
    stream.synchronize(Deadline::after(seconds(20)));
    exchange.check();
  };
  const auto count = static_cast<std::uint64_t>(a.number("operations", 12));
  for (std::uint64_t op = 0; op < count; ++op) {
    auto exchange = std::make_unique<Exchange>(comm, random_words(rng), op);
    if (a.number("late", -1) == a.rank) std::this_thread::sleep_for(milliseconds(20));
    if (order == 2) spin(static_cast<cudaStream_t>(stream.native()), 2'000'000);
    exchange->issue(stream);
    if (order != 1) {
      finish(*exchange);
    } else if (last) {
      finish(*last);
    }
    last = std::move(exchange);
  }
  if (order == 1) finish(*last);
  fmt::print("{} operations, {}\n", count, comm.route((a.rank + 1) % a.size));
  comm.finalize(Deadline::after(seconds(20)));
}

}  // namespace tandem::testing_p2p

// SPDX-License-Identifier: Apache-2.0
#include "transports/cuda_p2p/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/bytes.hpp"
#include "base/thread.hpp"
#include "bootstrap/addresses.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/words.hpp"
#include "tandem/deadline.hpp"
#include "tandem/error.hpp"

namespace tandem::cuda_p2p {

using detail::cuda::check;
using detail::cuda::check_quietly;
using detail::cuda::reset_then_raise;
using detail::cuda::wait_raised;
using std::chrono::milliseconds;

namespace {

constexpr std::chrono::seconds region_patience{10};
// Streams that an abort released need a moment to come to their end; past it their memory stays mapped.
constexpr std::chrono::seconds drain_patience{2};

struct Address {
  std::string host;
  std::string service;

  static Address decode(std::string_view bytes) {
    detail::ByteReader reader(bytes);
    Address a;
    a.host = reader.string();
    a.service = reader.string();
    reader.expect_end();
    return a;
  }
};

}  // namespace

Context::Context(const Membership& self, const plugin::Host& host)
    : self_(self),
      host_(host),
      cuda_(detail::cuda::Context::open(self.device)),
      board_(Board::create(self.size, cuda_)),
      probe_(Region::create(1, cuda_)),
      service_(self.group) {
  const detail::cuda::DeviceGuard guard(cuda_);
  for (int p = 0; p < self.size; ++p) {
    peers_.push_back(std::make_unique<Peer>());
    if (p != self.rank) peers_.back()->pusher = std::make_unique<Pusher>(cuda_, self.streams);
  }
  peer(self.rank).status = TANDEM_OK;
  check(cudaEventCreateWithFlags(&source_, cudaEventDisableTiming), "cudaEventCreateWithFlags", cuda_.ordinal);
  service_.offer({FdKey::board, 0}, board_.fd(), board_.bytes());
  service_.offer({FdKey::probe, 0}, probe_.fd(), probe_.bytes());
}

Context::~Context() {
  abort("the transport was closed");
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  if (connector_.joinable()) connector_.join();
  if (releaser_.joinable()) releaser_.join();
  const detail::cuda::QuietDeviceGuard guard(cuda_);
  if (guard && source_ != nullptr) check_quietly(cudaEventDestroy(source_), "cudaEventDestroy", cuda_.ordinal);
}

std::string Context::address() const {
  detail::ByteWriter writer;
  writer.string(detail::host_identity());
  writer.string(service_.name());
  return writer.take();
}

void Context::connect(const std::vector<std::string_view>& addresses) {
  const std::string own_host = detail::host_identity();
  for (int p = 0; p < self_.size; ++p) {
    if (p == self_.rank) continue;
    try {
      const Address address = Address::decode(addresses[static_cast<std::size_t>(p)]);
      if (address.host == own_host) {
        peer(p).service = address.service;
      } else {
        lose(p, ErrorCode::unsupported,
             fmt::format("rank {} is on another host, or in another container without a common network and process "
                         "namespace: its GPU memory cannot be mapped here",
                         p));
      }
    } catch (const Error& e) {
      throw Error(ErrorCode::invalid_argument, fmt::format("the address of rank {} is malformed: {}", p, e.what()));
    }
  }
  connector_ = detail::start_thread([this] { reach_peers(); });
}

void Context::lose(int p, ErrorCode code, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    peer(p).error = why;
  }
  peer(p).status.store(plugin::status(code), std::memory_order_release);
}

void Context::reach_peers() {
  detail::set_thread_name("tandem-p2p");
  for (int p = 0; p < self_.size; ++p) {
    if (peer(p).status != TANDEM_IN_PROGRESS) continue;
    try {
      reach(p);
      peer(p).status.store(TANDEM_OK, std::memory_order_release);
    } catch (const Error& e) {
      lose(p, e.code(), e.what());
    } catch (const std::exception& e) {  // memory or threads ran out: the connection fails, not the process
      lose(p, ErrorCode::internal, e.what());
    }
  }
}

void Context::reach(int p) {
  // Until the host gives up: a peer may be late.
  const Deadline deadline = Deadline::after(std::chrono::hours(1));
  const auto stop = [this] { return aborted_.load(); };
  auto [board, board_bytes] = fetch_fd(peer(p).service, self_.group, {FdKey::board, 0}, deadline, stop);
  peer(p).board = Board::open(std::move(board), board_bytes, self_.size, cuda_);
  auto [memory, bytes] = fetch_fd(peer(p).service, self_.group, {FdKey::probe, 0}, deadline, stop);
  Region::open(std::move(memory), bytes, cuda_);
}

std::string Context::connect_error(int p) {
  const std::lock_guard lock(mutex_);
  return peer(p).error;
}

tandem_status Context::connect_test(int p) const { return peer(p).status.load(std::memory_order_acquire); }

void Context::post(std::span<const tandem_transfer> transfers, cudaStream_t stream, const plugin::LaneUse& use) {
  if (aborted_) throw Error(ErrorCode::aborted, "the transport was aborted");
  const detail::cuda::DeviceGuard guard(cuda_);
  if (use.begin) begin(transfers, stream, use.lane);
  send(transfers, stream, use);
}

/// Behind everything that `stream` did so far, which includes the last reader of what landed there before.
void Context::begin(std::span<const tandem_transfer> transfers, cudaStream_t stream, std::uint32_t lane) {
  std::vector<const Board::Word*> reset, raise;
  std::set<int> senders;
  for (const tandem_transfer& t : transfers) {
    if (t.direction != TANDEM_RECEIVE) continue;
    const Board::Word* const word = &board_.arrival(t.peer, t.flag);
    if (reset.empty() || reset.back() != word) reset.push_back(word);
    senders.insert(t.peer);
  }
  for (int p = 0; p < self_.size; ++p) {
    if (p != self_.rank) reset.push_back(&board_.sent(p, lane));
  }
  for (const int p : senders) raise.push_back(&peer(p).board.ready(self_.rank, lane));
  reset_then_raise(stream, reset, raise, cuda_.ordinal);
}

void Context::send(std::span<const tandem_transfer> transfers, cudaStream_t stream, const plugin::LaneUse& use) {
  std::map<int, std::vector<const tandem_transfer*>> by_receiver;
  for (const tandem_transfer& t : transfers) {
    if (t.direction == TANDEM_SEND) by_receiver[t.peer].push_back(&t);
  }
  if (by_receiver.empty()) return;
  check(cudaEventRecord(source_, stream), "cudaEventRecord", cuda_.ordinal);
  for (const auto& [p, its] : by_receiver) {
    Pusher& pusher = *peer(p).pusher;
    pusher.begin(source_, use.first ? &board_.ready(p, use.lane) : nullptr);
    if (!push_by_kernel(p, its, use)) push(p, its, use);
  }
}

/// A flag is raised behind the last transfer that has it. Those that share one follow each other.
void Context::push(int p, std::span<const tandem_transfer* const> transfers, const plugin::LaneUse& use) {
  Pusher& pusher = *peer(p).pusher;
  std::size_t chunk = 0;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const tandem_transfer& t = *transfers[i];
    for (int n = 0; t.bytes > 0 && n < self_.repeat; ++n) pusher.copy(chunk, remote(t), t.buffer, t.bytes);
    const bool chunk_ends = i + 1 == transfers.size() || transfers[i + 1]->flag != t.flag;
    if (chunk_ends) pusher.raise(chunk++, peer(p).board.arrival(self_.rank, t.flag));
  }
  pusher.end(use.last ? &board_.sent(p, use.lane) : nullptr);
}

/// All flags at once, for few bytes: true if it was so.
bool Context::push_by_kernel(int p, std::span<const tandem_transfer* const> transfers, const plugin::LaneUse& use) {
  if (self_.kernel_bytes == 0) return false;
  std::uint64_t bytes = 0;
  std::vector<const Board::Word*> words;
  for (const tandem_transfer* t : transfers) {
    bytes += t->bytes;
    const Board::Word* const word = &peer(p).board.arrival(self_.rank, t->flag);
    if (words.empty() || words.back() != word) words.push_back(word);
  }
  if (bytes > self_.kernel_bytes || self_.repeat > 1 || transfers.size() > KernelPush::most_pieces ||
      words.size() > KernelPush::most_words)
    return false;
  std::vector<KernelPush::Piece> pieces;
  for (const tandem_transfer* t : transfers) {
    if (t->bytes > 0) pieces.push_back({remote(*t), t->buffer, t->bytes});
  }
  peer(p).pusher->push(pieces, words);
  peer(p).pusher->end(use.last ? &board_.sent(p, use.lane) : nullptr);
  return true;
}

void* Context::remote(const tandem_transfer& t) const {
  const SharedRegion& r = region(t.remote_region);
  if (r.of_peers.empty()) {
    throw Error(ErrorCode::invalid_usage, fmt::format("region {} has not been attached", t.remote_region));
  }
  const Region& target = r.of_peers[static_cast<std::size_t>(t.peer)];
  if (!target.valid()) throw Error(ErrorCode::invalid_usage, fmt::format("rank {} is not connected", t.peer), t.peer);
  if (t.remote_offset > target.bytes() || t.bytes > target.bytes() - t.remote_offset) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} bytes at {} do not fit rank {}'s region {} of {} bytes", t.bytes, t.remote_offset,
                            t.peer, t.remote_region, target.bytes()));
  }
  return static_cast<char*>(target.data()) + t.remote_offset;
}

void Context::wait(cudaStream_t stream, int p, std::uint32_t flag) const {
  const detail::cuda::DeviceGuard guard(cuda_);
  wait_raised(stream, board_.arrival(p, flag), cuda_.ordinal);
}

void Context::wait_sent(cudaStream_t stream) const {
  const detail::cuda::DeviceGuard guard(cuda_);
  for (const auto& p : peers_) {
    if (p->pusher) p->pusher->join(stream);
  }
}

bool Context::arrived(int p, std::uint32_t flag) const {
  return board_.arrival(p, flag).load(std::memory_order_acquire) != 0;
}

bool Context::sent(int p, std::uint32_t lane) const {
  return board_.sent(p, lane).load(std::memory_order_acquire) != 0;
}

Context::SharedRegion& Context::region(std::uint64_t number) {
  return const_cast<SharedRegion&>(std::as_const(*this).region(number));
}

const Context::SharedRegion& Context::region(std::uint64_t number) const {
  if (number >= regions_.size() || !regions_[static_cast<std::size_t>(number)]) {
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no region {}", number));
  }
  return *regions_[static_cast<std::size_t>(number)];
}

void* Context::allocate(std::uint64_t bytes, std::uint64_t* number) {
  *number = regions_.size();
  regions_.emplace_back();  // a call that fails takes a number, too: all ranks count alike
  auto shared = std::make_unique<SharedRegion>();
  shared->own = Region::create(bytes, cuda_);
  service_.offer({FdKey::region, *number}, shared->own.fd(), shared->own.bytes());
  regions_.back() = std::move(shared);
  return regions_.back()->own.data();
}

std::string Context::describe(std::uint64_t number) const {
  detail::ByteWriter writer;
  writer.u64(region(number).own.bytes());
  return writer.take();
}

void Context::attach(std::uint64_t number, const std::vector<std::string_view>&) {
  SharedRegion& shared = region(number);
  std::vector<Region> of_peers(static_cast<std::size_t>(self_.size));
  for (int p = 0; p < self_.size; ++p) {
    if (p == self_.rank || peer(p).status != TANDEM_OK) continue;
    try {
      auto [fd, bytes] = fetch_fd(peer(p).service, self_.group, {FdKey::region, number},
                                  Deadline::after(region_patience), [this] { return aborted_.load(); });
      of_peers[static_cast<std::size_t>(p)] = Region::open(std::move(fd), bytes, cuda_);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("region {} of rank {}: {}", number, p, e.what()), p);
    }
  }
  shared.of_peers = std::move(of_peers);
}

void Context::release(std::uint64_t number) {
  region(number);
  service_.withdraw({FdKey::region, number});
  regions_[static_cast<std::size_t>(number)].reset();
}

void Context::abort(const std::string&) {
  const std::lock_guard lock(mutex_);
  if (aborted_.exchange(true)) return;
  board_.raise_all();
  releaser_ = detail::start_thread([this] { keep_released(); });
}

/// Streams may still come to a reset and then to a wait behind it: everything is raised again and again until the
/// transport is closed and what it pushes is at its end.
void Context::keep_released() {
  detail::set_thread_name("tandem-release");
  Deadline until = Deadline::after(std::chrono::hours(1));
  bool closing = false;
  for (;;) {
    board_.raise_all();
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::microseconds(200), [&] { return closing_ && !closing; });
    if (closing_ && !closing) {
      closing = true;
      until = Deadline::after(drain_patience);
    }
    lock.unlock();
    if (!closing) continue;
    const detail::cuda::QuietDeviceGuard guard(cuda_);
    const detail::cuda::RelaxedCapture relaxed;
    try {
      const bool idle = !guard || std::all_of(peers_.begin(), peers_.end(),
                                              [](const auto& p) { return !p->pusher || p->pusher->idle(); });
      if (idle) return;
    } catch (const Error&) {
      return;  // the GPU is of no more use
    }
    if (until.passed()) {
      host_.log(TANDEM_LOG_WARN, "cuda_p2p: rank {} closes while its pushes still run", self_.rank);
      return;
    }
  }
}

}  // namespace tandem::cuda_p2p

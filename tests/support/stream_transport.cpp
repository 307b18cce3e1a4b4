// SPDX-License-Identifier: Apache-2.0
#include "support/stream_transport.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "comm/plugin_host.hpp"
#include "support/double_context.hpp"
#include "support/stream_world.hpp"

namespace tandem::testing {

namespace {

struct Violations {
  std::mutex mutex;
  std::vector<std::string> list;
};
Violations& violations() {
  static Violations all;
  return all;
}

struct Gates {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<bool(const StreamDelivery&)> matches;
  std::uint64_t held = 0;
};
Gates& gates() {
  static Gates all;
  return all;
}

struct StreamContext : DoubleContext<StreamWorld> {
  using DoubleContext::DoubleContext;
  void* allocate(std::uint64_t bytes, std::uint64_t* region) {
    void* base = nullptr;
    *region = world().allocate(rank(), bytes, &base);
    return base;
  }
  std::string describe(std::uint64_t region) const { return std::to_string(region); }
  void attach(std::uint64_t region, const std::vector<std::string_view>& blobs) {
    for (const std::string_view blob : blobs) {
      if (blob != describe(region)) throw std::logic_error("ranks have come to different numbers of regions");
    }
  }
  void release(std::uint64_t region) { world().release(rank(), region); }
};

struct Transport {
  using Context = StreamContext;
  static constexpr std::uint32_t capabilities = TANDEM_CAP_STREAM_ORDERED | TANDEM_CAP_ONE_SIDED;
  static constexpr const char* name = "stream";
  static constexpr const char* description = "ranks of one process over streams of host devices, for tests";
  static constexpr const char* option_help = "";
  static constexpr std::uint32_t flags = 6144;
  static constexpr std::uint32_t lanes = 6;

  static std::unique_ptr<Context> open(const tandem_open_params& params, const plugin::Host& host) {
    if (params.cuda_device != -1) throw std::invalid_argument("ranks on a GPU");
    return std::make_unique<Context>(params, host);
  }
};

}  // namespace

void register_stream_transport() {
  static const bool once = [] {
    detail::add_transport(plugin::TransportTable<Transport>::table);
    return true;
  }();
  static_cast<void>(once);
}

std::set<std::uint64_t> refused_peers(const std::string& list) {
  std::set<std::uint64_t> peers;
  std::istringstream stream(list);
  for (std::string peer; std::getline(stream, peer, '+');)
    peers.insert(plugin::parse_number("refuse", peer, 0, INT32_MAX));
  return peers;
}

void report_violation(const std::string& what) {
  const std::lock_guard lock(violations().mutex);
  violations().list.push_back(what);
}

std::vector<std::string> take_stream_violations() {
  const std::lock_guard lock(violations().mutex);
  return std::exchange(violations().list, {});
}

void pass_gate(const StreamDelivery& delivery, const std::function<bool()>& given_up) {
  Gates& g = gates();
  std::unique_lock lock(g.mutex);
  if (!g.matches || !g.matches(delivery)) return;
  ++g.held;
  g.changed.notify_all();
  while (g.matches) {
    lock.unlock();
    if (given_up()) return;
    lock.lock();
    g.changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

StreamGate::StreamGate(std::function<bool(const StreamDelivery&)> matches) {
  const std::lock_guard lock(gates().mutex);
  gates().matches = std::move(matches);
  gates().held = 0;
}

StreamGate::~StreamGate() { release(); }

void StreamGate::release() {
  {
    const std::lock_guard lock(gates().mutex);
    gates().matches = nullptr;
  }
  gates().changed.notify_all();
}

bool StreamGate::wait_held(std::uint64_t count, Deadline deadline) const {
  std::unique_lock lock(gates().mutex);
  return gates().changed.wait_until(lock, deadline.time(), [&] { return gates().held >= count; });
}

}  // namespace tandem::testing

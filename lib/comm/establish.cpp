// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <random>

#include "base/bytes.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "bootstrap/addresses.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/open_endpoint.hpp"
#include "comm/routed_endpoint.hpp"
#include "tandem/version.hpp"

namespace tandem::detail {

namespace {

struct Hello {
  std::string version, transport, host;

  std::string encode() const {
    ByteWriter w;
    for (const std::string* s : {&version, &transport, &host}) w.string(*s);
    return w.take();
  }
  static Hello decode(const std::string& bytes) {
    ByteReader r(bytes);
    Hello h;
    for (std::string* s : {&h.version, &h.transport, &h.host}) *s = r.string();
    r.expect_end();
    return h;
  }
};

// Key and both values of the first fact that differs between two encodings.
std::array<std::string, 3> first_difference(const std::string& a, const std::string& b) {
  ByteReader first(a);
  ByteReader other(b);
  while (!first.at_end() && !other.at_end()) {
    std::string key = first.string();
    std::string mine = first.string();
    other.string();
    std::string theirs = other.string();
    if (mine != theirs) return {std::move(key), std::move(mine), std::move(theirs)};
  }
  return {"the number of facts", std::to_string(a.size()), std::to_string(b.size())};
}

std::string random_group() {
  std::random_device random;
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t v = random();
    bytes.append(reinterpret_cast<const char*>(&v), sizeof(v));
  }
  return bytes;
}

std::optional<Error> compare_hellos(const std::vector<Hello>& hellos) {
  for (std::size_t r = 1; r < hellos.size(); ++r) {
    auto differs = [&](const char* what, const std::string& first, const std::string& other) {
      return Error(ErrorCode::version_mismatch,
                   fmt::format("{}: rank 0 has '{}', rank {} has '{}'", what, first, r, other), static_cast<int>(r));
    };
    const Hello& first = hellos[0];
    const Hello& other = hellos[r];
    if (first.version != other.version) return differs("tandem version", first.version, other.version);
    if (first.transport != other.transport) return differs("transport", first.transport, other.transport);
  }
  return std::nullopt;
}

// One blocking transfer of eight bytes, for the clocks.
class WordExchange {
 public:
  WordExchange(Endpoint& endpoint, int peer, Deadline deadline)
      : endpoint_(endpoint), peer_(peer), deadline_(deadline) {}

  std::int64_t move(bool receive, std::int64_t value, std::uint32_t round) {
    struct Cell {
      std::int64_t value;
      std::promise<Status> done;
    };
    auto cell = std::make_shared<Cell>();
    cell->value = value;
    auto future = cell->done.get_future();
    const WireTransfer transfer{peer_, receive, &cell->value, sizeof(cell->value),
                                Tag{0, OpKind::clock, 0, round}.encode()};
    endpoint_.post({&transfer, 1}, [cell](std::size_t, const Status& s) { cell->done.set_value(s); });
    if (future.wait_until(deadline_.time()) != std::future_status::ready) {
      throw Error(ErrorCode::timeout, fmt::format("comparing clocks with rank {} took too long", peer_), peer_);
    }
    future.get().throw_if_failed();
    return cell->value;
  }

 private:
  Endpoint& endpoint_;
  int peer_;
  Deadline deadline_;
};

}  // namespace

std::int64_t clock_offset(Endpoint& endpoint, int rank, int other, Deadline deadline) {
  constexpr std::uint32_t rounds = 8;
  WordExchange words(endpoint, other, deadline);
  std::int64_t best_trip = INT64_MAX;
  std::int64_t offset = 0;
  for (std::uint32_t i = 0; i < rounds; ++i) {
    if (rank == 0) {
      words.move(true, 0, 2 * i);
      words.move(false, now_ns(), 2 * i + 1);
      continue;
    }
    const std::int64_t begin = now_ns();
    words.move(false, 0, 2 * i);
    const std::int64_t theirs = words.move(true, 0, 2 * i + 1);
    const std::int64_t end = now_ns();
    // The shortest trip was held up least; rank 0 read its clock about halfway through it.
    if (end - begin < best_trip) {
      best_trip = end - begin;
      offset = theirs - (begin + (end - begin) / 2);
    }
  }
  return offset;
}

void CommunicatorImpl::join() {
  try {
    establish();
  } catch (const Error& e) {
    fail({e.code(), e.what(), e.rank(), -1}, true);
    throw;
  }
}

void CommunicatorImpl::establish() {
  if (size() == 1) return;
  const Deadline deadline = Deadline::after(options_.rendezvous_timeout);
  meeting_.emplace(store_, rank(), size());
  watchdog_ = start_thread([this] { watch(); });
  listening_ = job_store_->listen([weak = weak_from_this()](const Store::Notice& notice) {
    if (const auto self = weak.lock()) self->on_notice(notice);
  });
  // Before anything is collected: rank 0 would wait for ranks that nobody started, or answer fewer than there are.
  const std::string my_size = std::to_string(size());
  const std::string first_size = meet([&] { return meeting_->hear_rank_0("rendezvous/size", my_size, deadline); });
  if (first_size != my_size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} was created with size {}, rank 0 with size {}", rank(), my_size, first_size),
                rank());
  }
  const std::string group_bytes = meet([&] { return meeting_->broadcast("rendezvous", random_group(), deadline); });
  GroupId group{};
  std::copy_n(group_bytes.begin(), std::min(group_bytes.size(), group.size()), group.begin());

  const Hello mine{version(), describe_transports(options_.transport, options_.device), host_identity()};
  std::vector<Hello> hellos;
  for (const std::string& bytes : meet([&] { return meeting_->collect("introduction", mine.encode(), deadline); })) {
    hellos.push_back(Hello::decode(bytes));
  }
  if (const std::optional<Error> e = compare_hellos(hellos)) disagree(*e, deadline);
  connect_routes(group, deadline);

  for (int r = 1; r < size(); ++r) {
    // One steady clock serves all processes of a host.
    if (hellos[static_cast<std::size_t>(r)].host == hellos[0].host) continue;
    if (streamed()) continue;  // nothing tells the host when a word has arrived
    if (rank() == 0) meet([&] { clock_offset(*endpoint_, 0, r, deadline); });
    if (rank() == r) clock_offset_ns_ = meet([&] { return clock_offset(*endpoint_, r, 0, deadline); });
  }
  status().throw_if_failed();
  log::debug("rank {} of {} is connected over {}", rank(), size(), transports());
}

void CommunicatorImpl::connect_routes(const GroupId& group, Deadline deadline) {
  const auto hold = [&](const std::shared_ptr<Endpoint>& endpoint) {
    const std::unique_lock lock(endpoint_mutex_);
    endpoint_ = endpoint;
  };
  RouteSearch search;
  search.rank = rank();
  search.size = size();
  search.transports = split_names(options_.transport);
  search.why = route_reason_;
  search.deadline = deadline;
  search.open = [&](const std::string& name) {
    std::shared_ptr<Endpoint> endpoint = open_endpoint(
        {choose_transport(name, options_.device), options_.transport_options, options_.device, rank(), size(), group,
         [weak = weak_from_this()](int peer, const std::string& reason) {
           if (const auto self = weak.lock()) self->suspect(peer, reason);
         },
         [weak = weak_from_this()](const Status& status) {
           if (const auto self = weak.lock()) self->on_transfer_error(status);
         }});
    hold(endpoint);  // so that it is aborted if somebody fails meanwhile
    return endpoint;
  };
  search.collect = [&](const std::string& what, const std::string& mine) {
    return meet([&] { return meeting_->collect("route/" + what, mine, deadline); });
  };
  search.disagree = [&](const Error& e) { disagree(e, deadline); };
  // With one transport an error may be the echo of a rank's death; with several the ranks have told each other.
  const std::vector<Route> routes =
      search.transports.size() == 1 ? meet([&] { return find_routes(search); }) : find_routes(search);
  for (int r = 0; r < size(); ++r) {
    const Route& route = routes[static_cast<std::size_t>(r)];
    routes_[static_cast<std::size_t>(r)] = {route.endpoint ? route.endpoint->name(r) : "", route.reason};
  }
  const std::shared_ptr<Endpoint> endpoint = join_routes(routes);
  hold(endpoint);
  const Traits traits = endpoint->traits();
  streamed_ = traits.stream_ordered;
  one_sided_ = traits.one_sided;
  if (streamed() && traits.lane_limit < StreamLayout::lanes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} has {} lanes; {} are needed", transports(), traits.lane_limit, StreamLayout::lanes),
                rank());
  }
}

void CommunicatorImpl::agree(const std::string& name, const std::vector<std::pair<std::string, std::string>>& facts,
                             Deadline deadline) {
  if (size() == 1) return;
  ByteWriter mine;
  for (const auto& [key, value] : facts) {
    mine.string(key);
    mine.string(value);
  }
  const std::vector<std::string> all = meet([&] { return meeting_->collect(name, mine.bytes(), deadline); });
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto [key, first, other] = first_difference(all[0], all[r]);
    disagree(Error(ErrorCode::version_mismatch,
                   fmt::format("{} differs: rank 0 has {}, rank {} has {}", key, first, r, other), static_cast<int>(r)),
             deadline);
  }
}

void CommunicatorImpl::disagree(const Error& error, Deadline deadline) {
  // A rank that throws now may take its communicator down, and its peers with it, before they have seen what differs.
  try {
    meeting_->barrier("disagreement",
                      Deadline::at(std::min(deadline.time(), Deadline::after(std::chrono::seconds(1)).time())));
  } catch (const Error&) {
    // Some rank is gone already: it knows.
  }
  throw error;
}

}  // namespace tandem::detail

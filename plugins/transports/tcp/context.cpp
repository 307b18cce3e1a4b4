// SPDX-License-Identifier: Apache-2.0
#include "transports/tcp/context.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <set>

#include "base/thread.hpp"
#include "bootstrap/addresses.hpp"
#include "tandem/deadline.hpp"
#include "transports/tcp/idle_cores.hpp"

namespace tandem::tcp {
namespace {

using Clock = std::chrono::steady_clock;

// Sleeping and being woken costs more than a short transfer, so while transfers are pending the progress thread watches
// the sockets for a moment before it sleeps.
constexpr std::chrono::microseconds watch{200};

}  // namespace

Context::Context(const Membership& self, const Options& options, const plugin::Host& host)
    : self_(self), host_(host), work_(io_.get_executor()) {
  for (int p = 0; p < self.size; ++p)
    peers_.push_back(std::make_unique<Peer>(self.rank, p, options.segment_bytes, options.repeat, host_));
  const bool narrowed = !options.interface.empty();
  const auto bound = narrowed ? detail::local_address_for(options.interface) : std::string();
  listener_.emplace(
      io_, self_, host_, [this](int rank) { return peer(rank).wants_connection(); },
      [this](int rank, auto socket) { peer(rank).connected(std::move(socket)); });
  own_address_.host = detail::host_identity();
  own_address_.port = listener_->listen_on(bound);
  if (options.unix_sockets) own_address_.local_name = listener_->listen_locally();
  own_address_.addresses = narrowed ? std::vector<std::string>{bound} : detail::advertised_addresses(std::nullopt);
  listener_->start();
  thread_ = detail::start_thread([this] { run(); });
}

void Context::run() {
  detail::set_thread_name("tandem-tcp");
  for (;;) {
    try {
      progress();
      return;
    } catch (const std::exception& e) {
      host_.log(TANDEM_LOG_ERROR, "tcp: the progress thread of rank {} failed: {}", self_.rank, e.what());
      end_with(ErrorCode::internal, e.what());
    }
  }
}

void Context::progress() {
  IdleCores idle_cores;
  auto last_moved = Clock::now();
  while (!io_.stopped()) {
    const bool called = io_.poll() > 0;
    const bool moved = work_where(&Peer::is_busy) || called;
    const auto now = Clock::now();
    if (!moved && now < last_moved + watch && has_pending() && idle_cores.present(now)) {
      if (!work_where(&Peer::has_pending)) continue;
    } else if (!moved) {
      io_.run_one();
    }
    last_moved = Clock::now();
  }
}

/// True if bytes moved.
bool Context::work_where(bool (Peer::*is_so)() const) {
  bool moved = false;
  for (const auto& peer : peers_) moved |= ((*peer).*is_so)() && peer->work();
  return moved;
}

bool Context::has_pending() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->has_pending(); });
}

void Context::connect(const std::vector<std::string_view>& addresses) {
  for (int p = 0; p < self_.rank; ++p) {
    std::vector<Endpoint> candidates;
    try {
      candidates = Address::decode(addresses[static_cast<std::size_t>(p)]).candidates(own_address_.host);
    } catch (const Error& e) {
      throw Error(ErrorCode::invalid_argument, fmt::format("the address of rank {} is malformed: {}", p, e.what()));
    }
    if (candidates.empty())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("rank {} is on another host and gave no address to reach it there", p));
    boost::asio::post(io_, [this, p, candidates = std::move(candidates)] {
      if (ended_) return;
      dialers_.push_back(std::make_shared<Dialer>(io_, self_, p, candidates, host_,
                                                  [this, p](auto socket) { peer(p).connected(std::move(socket)); }));
      dialers_.back()->start();
    });
  }
}

void Context::post(const std::vector<tandem_transfer>& transfers, tandem_completion_fn on_complete, void* user) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t i = 0; i < transfers.size(); ++i) {
      const auto& t = transfers[i];
      inbox_.push_back(
          {t.peer, t.direction == TANDEM_SEND, static_cast<char*>(t.buffer), t.bytes, t.tag, on_complete, user, i});
    }
    wake = !std::exchange(woken_, true);
  }
  if (wake) boost::asio::post(io_, [this] { empty_inbox(); });
}

void Context::end_with(ErrorCode code, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!end_) end_ = End{code, reason};
  }
  boost::asio::post(io_, [this] { empty_inbox(); });
}

void Context::empty_inbox() {
  std::vector<Operation> operations;
  std::optional<End> end;
  {
    const std::lock_guard lock(mutex_);
    operations.swap(inbox_);
    end = end_;
    woken_ = false;
  }
  if (end) {
    end_everything(*end);
    for (const auto& operation : operations) operation.complete(end->code, end->reason);
    return;
  }
  std::set<int> touched;
  for (const auto& operation : operations) {
    peer(operation.peer).post(operation);
    touched.insert(operation.peer);
  }
  for (const int rank : touched) peer(rank).work();
}

void Context::end_everything(const End& end) {
  if (std::exchange(ended_, true)) return;
  listener_->stop();
  for (const auto& dialer : dialers_) dialer->stop();
  for (const auto& peer : peers_) peer->stop(end.code, end.reason);
}

Context::~Context() {
  bool aborted = false;
  {
    const std::lock_guard lock(mutex_);
    aborted = end_.has_value();
  }
  abort("the transport was closed");
  work_.reset();
  boost::asio::post(io_, [this] { io_.stop(); });
  thread_.join();
  while (!inbox_.empty()) empty_inbox();  // what completions posted last
  if (!aborted) linger();
}

/// Lets what was sent arrive: closing a socket that still gets data resets the connection and drops what is under way.
void Context::linger() {
  const auto deadline = Deadline::after(std::chrono::milliseconds(500));
  std::set<Stream*> talking, leaving;
  std::vector<char> rest(std::size_t{1} << 16);
  for (const auto& peer : peers_) {
    if (peer->stream()) talking.insert(peer->stream().get());
  }
  while (!deadline.passed()) {
    std::erase_if(talking, [&](Stream* stream) { return stream->say_goodbye() && leaving.insert(stream).second; });
    std::vector<pollfd> readable;
    std::erase_if(leaving, [&](Stream* stream) {
      const auto thrown_away = ::recv(stream->fd(), rest.data(), rest.size(), MSG_DONTWAIT);
      stream->acknowledge();
      int unacknowledged = 0;
      const bool gone = thrown_away == 0 || (thrown_away < 0 && errno != EAGAIN && errno != EINTR);
      // The end of the stream counts as one.
      return gone || ::ioctl(stream->fd(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged <= 1;
    });
    if (talking.empty() && leaving.empty()) return;
    for (Stream* stream : leaving) readable.push_back({stream->fd(), POLLIN, 0});
    ::poll(readable.data(), readable.size(), 1);
  }
}

}  // namespace tandem::tcp

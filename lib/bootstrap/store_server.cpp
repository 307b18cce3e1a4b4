// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/store_server.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"

namespace tandem {
namespace detail {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using wire::Kind;

namespace {

constexpr std::chrono::seconds hello_timeout{1};
// What a rank has to come with the right size after someone came in its place with another one.
constexpr std::chrono::seconds doubt_time{1};
// A rank is lost after so many checks in a row that find it silent. Counting checks rather than time forgives the ranks
// for a pause of the server itself.
constexpr int checks_per_timeout = 5;

const StoreServerOptions& validated(const StoreServerOptions& options) {
  if (options.size < 1) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a store server for {} ranks", options.size));
  }
  if (options.heartbeat_timeout < std::chrono::milliseconds(checks_per_timeout)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a store server with a heartbeat timeout of {} ms; the least is {} ms",
                            options.heartbeat_timeout.count(), checks_per_timeout));
  }
  return options;
}

}  // namespace

struct AsioStoreServer::Guest {
  explicit Guest(tcp::socket s) : socket(std::move(s)), timer(socket.get_executor()) {}
  tcp::socket socket;
  asio::steady_timer timer;
  wire::HelloBytes bytes{};
};

AsioStoreServer::AsioStoreServer(const StoreServerOptions& options, std::optional<int> serving_rank)
    : options_(validated(options)),
      serving_rank_(serving_rank),
      acceptor_(listen_on(io_, options_.address, options_.port)),
      accept_timer_(io_),
      check_timer_(io_),
      port_(acceptor_.local_endpoint().port()),
      members_(static_cast<std::size_t>(options_.size)),
      roster_(options_.size) {
  accept_next();
  schedule_check();
  thread_ = detail::start_thread([this] {
    set_thread_name("tandem-server");
    run_loop(io_, "the store server");
  });
}

AsioStoreServer::~AsioStoreServer() { stop(); }

void AsioStoreServer::stop() noexcept {
  std::lock_guard stopping(stop_mutex_);
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  io_.stop();
  thread_.join();
  // The server may be kept for its counters; its sockets go now.
  error_code ignored;
  acceptor_.close(ignored);
  for (Member& m : members_) {
    if (m.connection) m.connection->close();
  }
  for (const auto& guest : guests_) guest->socket.close(ignored);
}

bool AsioStoreServer::wait_all_left(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto all_left = [this] {
    return roster_.ranks_in(Roster::State::absent).empty() && roster_.ranks_in(Roster::State::here).empty() &&
           saying_good_bye_.empty();
  };
  changed_.wait_until(lock, deadline.time(), [&] { return stopped_ || all_left(); });
  return all_left();
}

std::vector<int> AsioStoreServer::missing_ranks() const {
  std::lock_guard lock(mutex_);
  return roster_.ranks_in(Roster::State::absent);
}

void AsioStoreServer::accept_next() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](const error_code& error) {
    if (!error) accept_all();
  });
}

void AsioStoreServer::accept_all() {
  error_code error;
  while (true) {
    tcp::socket socket = accept_from(acceptor_, error);
    if (error) break;
    receive(std::move(socket));
  }
  if (error == asio::error::would_block) return accept_next();
  // Out of descriptors or memory, or the connection died in the queue: trying again at once would spin.
  log::debug("the store server cannot accept a connection: {}", error.message());
  accept_timer_.expires_after(std::chrono::milliseconds(20));
  accept_timer_.async_wait([this](const error_code& e) {
    if (!e) accept_next();
  });
}

void AsioStoreServer::receive(tcp::socket socket) {
  set_stream_options(socket);
  auto guest = std::make_shared<Guest>(std::move(socket));
  guests_.insert(guest);
  guest->timer.expires_after(hello_timeout);
  guest->timer.async_wait([this, guest](const error_code& error) {
    if (error || guests_.erase(guest) == 0) return;
    drop(*guest, "its hello is late");
    error_code ignored;
    guest->socket.close(ignored);
  });
  asio::async_read(guest->socket, asio::buffer(guest->bytes), [this, guest](const error_code& error, std::size_t) {
    if (guests_.erase(guest) == 0) return;
    guest->timer.cancel();
    if (error) return drop(*guest, "it ended before its hello");
    greet(guest);
  });
}

void AsioStoreServer::drop(const Guest& guest, const char* why) {
  ++dropped_;
  error_code ignored;
  log::debug("the store server dropped a connection from {}: {}",
             format_host_port(guest.socket.remote_endpoint(ignored)), why);
}

void AsioStoreServer::greet(const std::shared_ptr<Guest>& guest) {
  const std::optional<wire::Hello> hello = wire::decode_hello(guest->bytes);
  if (!hello) return drop(*guest, "its hello is garbled");
  if (hello->token != options_.token) return drop(*guest, "its token is another job's");
  admit(std::move(guest->socket), *hello);
}

void AsioStoreServer::admit(tcp::socket socket, const wire::Hello& hello) {
  auto connection = std::make_shared<Connection>(std::move(socket));
  const auto refuse = [&](ErrorCode code, std::string why) {
    log::info("the store server refused rank {}: {}", hello.rank, why);
    connection->send(wire::frame({Kind::refused, 0, static_cast<std::int64_t>(code), {}, std::move(why)}));
    connection->finish(nullptr);
  };
  if (hello.version != wire::version) {
    return refuse(ErrorCode::version_mismatch,
                  fmt::format("rank {} speaks version {} of the store protocol, the server version {}", hello.rank,
                              hello.version, wire::version));
  }
  if (hello.size != options_.size) {
    const std::string why = size_conflict(hello);
    refuse(ErrorCode::invalid_argument, why);
    return doubt(hello.rank, why);
  }
  {
    std::lock_guard lock(mutex_);
    if (const std::optional<std::string> refusal = roster_.join(hello.rank)) {
      return refuse(ErrorCode::invalid_argument, *refusal);
    }
  }
  const int rank = hello.rank;
  member(rank).connection = connection;
  send(rank, {Kind::welcome, 0, options_.heartbeat_timeout.count(), {}, {}});
  for (const PastNotice& past : notices_) {
    if (past.origin != rank) send(rank, wire::message_of(Kind::notice, past.notice));
  }
  connection->start([this, rank](wire::Message message) { handle(rank, std::move(message)); },
                    [this, rank](const std::string& reason) { lose(rank, reason); });
}

std::string AsioStoreServer::size_conflict(const wire::Hello& hello) const {
  if (serving_rank_) {
    return fmt::format("rank {} was started with WORLD_SIZE {}, rank {} with {}", hello.rank, hello.size,
                       *serving_rank_, options_.size);
  }
  return fmt::format("rank {} was started for a job of {} ranks, the store server for one of {}", hello.rank,
                     hello.size, options_.size);
}

// Whoever is refused for its size is most likely that rank, started wrongly: the others would wait for it in vain. But
// it may also be a stray of another job with the same token (one MASTER_PORT, no run id), which must not end this one.
// If the rank is here, or comes soon, it was a stray.
void AsioStoreServer::doubt(int rank, const std::string& why) {
  if (rank < 0 || rank >= options_.size) return;  // nobody waits for it
  auto timer = std::make_shared<asio::steady_timer>(io_, doubt_time);
  timer->async_wait([this, timer, rank, why](const error_code& error) {
    if (error) return;
    {
      std::lock_guard lock(mutex_);
      if (!roster_.give_up(rank, why)) return;
    }
    changed_.notify_all();
    log::info("the store server gave up rank {}: {}", rank, why);
    tell_others(rank, {Store::Notice::Kind::peer_lost, rank, why});
  });
}

void AsioStoreServer::handle(int rank, wire::Message message) {
  switch (message.kind) {
    case Kind::set:
    case Kind::get:
    case Kind::try_get:
    case Kind::add:
    case Kind::erase:
      return handle_request(rank, message);
    case Kind::cancel:
      member(rank).waits.erase(message.id);
      return;
    case Kind::good_bye:
      return say_good_bye(rank, message.id);
    case Kind::heartbeat:
      return send(rank, message);
    case Kind::announce:
      if (const std::optional<Store::Notice> notice = wire::notice_of(message)) {
        member(rank).aborted |= notice->kind == Store::Notice::Kind::aborted;
        return tell_others(rank, *notice);
      }
      break;
    default:
      break;
  }
  lose(rank, "it sent a message that a client may not send");
}

void AsioStoreServer::handle_request(int rank, const wire::Message& message) {
  const Request request{wire::op_of(message.kind), message.key, message.value, message.number};
  try {
    Reply reply = keys_.apply(request);
    if (!reply.found && request.op == Request::Op::get) {
      member(rank).waits.insert_or_assign(message.id, message.key);
      return;
    }
    send(rank, {reply.found ? Kind::reply : Kind::absent, message.id, reply.number, {}, std::move(reply.value)});
    if (request.op == Request::Op::set) answer_waits(request.key, request.value);
    if (request.op == Request::Op::add) answer_waits(request.key, std::to_string(reply.number));
  } catch (const Error& e) {
    send(rank, {Kind::failure, message.id, static_cast<std::int64_t>(e.code()), {}, e.what()});
  }
}

void AsioStoreServer::answer_waits(const std::string& key, const std::string& value) {
  for (int rank = 0; rank < options_.size; ++rank) {
    std::erase_if(member(rank).waits, [&](const auto& wait) {
      if (wait.second != key) return false;
      send(rank, {Kind::reply, wait.first, 0, {}, value});
      return true;
    });
  }
}

void AsioStoreServer::say_good_bye(int rank, std::uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    roster_.leave(rank);
    saying_good_bye_.insert(rank);
  }
  member(rank).waits.clear();
  send(rank, {Kind::reply, id, 0, {}, {}});
  // Whoever waits for all to have left will stop the server: not before this answer is on its way.
  member(rank).connection->finish([this, rank] {
    {
      std::lock_guard lock(mutex_);
      saying_good_bye_.erase(rank);
    }
    changed_.notify_all();
  });
  tell_others(rank, {Store::Notice::Kind::left, rank, "it said good-bye"});
}

void AsioStoreServer::lose(int rank, const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!roster_.lose(rank)) return;
  }
  changed_.notify_all();
  const Store::Notice notice{Store::Notice::Kind::peer_lost, rank,
                             member(rank).aborted ? reason + ", after it called abort" : reason};
  log::info("the store server lost rank {}: {}", rank, notice.reason);
  // If it only was silent, it hears why it is out when it wakes up.
  member(rank).waits.clear();
  send(rank, wire::message_of(Kind::notice, notice));
  member(rank).connection->finish(nullptr);
  tell_others(rank, notice);
}

void AsioStoreServer::tell_others(int origin, const Store::Notice& notice) {
  notices_.push_back({origin, notice});
  const std::string bytes = wire::frame(wire::message_of(Kind::notice, notice));
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != origin && member(rank).connection) member(rank).connection->send(bytes);
  }
}

void AsioStoreServer::schedule_check() {
  check_timer_.expires_after(options_.heartbeat_timeout / checks_per_timeout);
  check_timer_.async_wait([this](const error_code& error) {
    if (error) return;
    check_silence();
    schedule_check();
  });
}

void AsioStoreServer::check_silence() {
  for (int rank = 0; rank < options_.size; ++rank) {
    Member& m = member(rank);
    if (!m.connection || !m.connection->open()) continue;
    m.silent_checks = m.connection->take_heard() ? 0 : m.silent_checks + 1;
    if (m.silent_checks > checks_per_timeout) {
      lose(rank, fmt::format("nothing was heard from it for {}", format_duration(options_.heartbeat_timeout)));
    }
  }
}

}  // namespace detail

std::shared_ptr<StoreServer> StoreServer::start(const StoreServerOptions& options) {
  return std::make_shared<detail::AsioStoreServer>(options);
}

}  // namespace tandem

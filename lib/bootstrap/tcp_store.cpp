// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/tcp_store.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"

namespace tandem {
namespace detail {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;
using wire::Kind;

namespace {

constexpr int beats_per_timeout = 5;
// What close() and destruction give the last words (an abort, say) to get out of a socket whose buffer is full.
constexpr milliseconds flush_time{500};

milliseconds interval_of(milliseconds own_timeout, milliseconds server_timeout) {
  return std::max(milliseconds(1), std::min(own_timeout, server_timeout) / beats_per_timeout);
}

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options, std::unique_ptr<asio::io_context> io, Joined joined)
    : RequestStore(std::make_shared<View>()),
      options_(options),
      io_(std::move(io)),
      work_(io_->get_executor()),
      heartbeat_timer_(*io_),
      flush_timer_(*io_),
      heartbeat_interval_(interval_of(options.heartbeat_timeout, joined.server_heartbeat_timeout)),
      most_silent_beats_(static_cast<int>(options.heartbeat_timeout / heartbeat_interval_)),
      connection_(std::make_shared<Connection>(std::move(joined.socket))) {
  thread_ = detail::start_thread([this] {
    set_thread_name("tandem-store");
    connection_->start([this](wire::Message message) { handle(std::move(message)); },
                       [this](const std::string& reason) { lose_server(reason); });
    schedule_heartbeat();
    run_loop(*io_, "the store");
  });
}

TcpStore::~TcpStore() {
  close();
  asio::post(*io_, [this] { work_.reset(); });
  thread_.join();
}

Reply TcpStore::request(Request request, Deadline deadline, const View& view) {
  std::optional<wire::Message> answer =
      exchange({wire::kind_of(request.op), 0, request.amount, request.key, std::move(request.value)}, deadline, &view);
  if (!answer) {
    const char* why = request.op == Request::Op::get ? "was not set in time" : "got no answer in time";
    throw Error(ErrorCode::timeout,
                fmt::format("rank {}: {} of key '{}' {} (store at {})", options_.rank, to_string(request.op),
                            request.key, why, options_.endpoint),
                options_.rank);
  }
  if (answer->kind == Kind::failure) throw Error(static_cast<ErrorCode>(answer->number), answer->value, options_.rank);
  return {answer->kind != Kind::absent, std::move(answer->value), answer->number};
}

std::optional<wire::Message> TcpStore::exchange(wire::Message message, Deadline deadline, const View* view) {
  if (std::this_thread::get_id() == thread_.get_id()) {
    throw Error(ErrorCode::invalid_usage, "a store's listener may not wait for the store", options_.rank);
  }
  const auto check = [&] {
    if (view != nullptr) view->check();
    if (this->view()->closed()) this->view()->check();
    if (failure_) throw Error(*failure_);
  };
  Call call;
  std::unique_lock lock(mutex_);
  check();
  message.id = next_id_++;
  post_frame(wire::frame(message));
  calls_.emplace(message.id, &call);
  call.ready.wait_until(lock, deadline.time(), [&] {
    return call.answer || failure_ || this->view()->closed() || (view != nullptr && !view->open());
  });
  calls_.erase(message.id);
  if (call.answer) return std::move(call.answer);
  check();
  if (message.kind == Kind::get) post_frame(wire::frame({Kind::cancel, message.id, 0, {}, {}}));
  return std::nullopt;
}

void TcpStore::post_frame(std::string frame) {
  asio::post(*io_, [this, frame = std::move(frame)]() mutable { connection_->send(std::move(frame)); });
}

void TcpStore::wake() noexcept {
  std::lock_guard lock(mutex_);
  for (const auto& [id, call] : calls_) call->ready.notify_all();
}

std::shared_ptr<void> TcpStore::listen(Listener listener) {
  auto handle = board_.listen(std::move(listener));
  asio::post(*io_, [this] { board_.deliver(); });
  return handle;
}

void TcpStore::announce(const Notice& notice) noexcept {
  try {
    post_frame(wire::frame(wire::message_of(Kind::announce, notice)));
  } catch (const std::exception& e) {
    log::error("rank {}: cannot announce to the other ranks: {}", options_.rank, e.what());
  }
}

void TcpStore::leave(Deadline deadline) {
  if (view()->closed()) view()->check();
  if (!view()->open()) return;
  view()->leave();
  wake();
  if (!exchange({Kind::good_bye, 0, 0, {}, {}}, deadline, nullptr)) {
    throw Error(ErrorCode::timeout,
                fmt::format("rank {}: the store server at {} did not answer the good-bye in time", options_.rank,
                            options_.endpoint),
                options_.rank);
  }
  asio::post(*io_, [this] { end_connection(); });
  if (options_.server && !options_.server->wait_all_left(deadline)) {
    log::warn("rank {} serves the store and stops waiting for the others to leave", options_.rank);
  }
}

void TcpStore::close() noexcept {
  view()->close();
  wake();
  try {
    asio::post(*io_, [this] { end_connection(); });
  } catch (const std::exception& e) {
    log::error("rank {}: cannot close the store's connection: {}", options_.rank, e.what());
  }
}

void TcpStore::handle(wire::Message message) {
  switch (message.kind) {
    case Kind::reply:
    case Kind::absent:
    case Kind::failure: {
      std::lock_guard lock(mutex_);
      const auto found = calls_.find(message.id);
      if (found == calls_.end()) return;  // its caller gave up
      found->second->answer = std::move(message);
      found->second->ready.notify_all();
      return;
    }
    case Kind::notice:
      if (std::optional<Notice> notice = wire::notice_of(message)) hear(std::move(*notice));
      return;
    default:  // heartbeat: its bytes were the message
      return;
  }
}

void TcpStore::schedule_heartbeat() {
  heartbeat_timer_.expires_after(heartbeat_interval_);
  heartbeat_timer_.async_wait([this](const error_code& error) {
    if (!error && connection_->open()) beat();
  });
}

void TcpStore::beat() {
  silent_beats_ = connection_->take_heard() ? 0 : silent_beats_ + 1;
  if (silent_beats_ > most_silent_beats_) {
    return lose_server(fmt::format("nothing was heard from it for {}", format_duration(options_.heartbeat_timeout)));
  }
  if (view()->open()) connection_->send(wire::frame({Kind::heartbeat, 0, 0, {}, {}}));
  schedule_heartbeat();
}

void TcpStore::hear(Notice notice) {
  const bool about_us = notice.kind == Notice::Kind::peer_lost && notice.rank == options_.rank;
  if (about_us) {
    fail(Error(ErrorCode::peer_failed,
               fmt::format("the store server at {} counts rank {} as lost: {}", options_.endpoint, options_.rank,
                           notice.reason),
               options_.rank));
  }
  board_.add(std::move(notice));
  board_.deliver();
}

void TcpStore::lose_server(const std::string& reason) {
  const std::string what = fmt::format("the store server at {} is gone: {}", options_.endpoint, reason);
  // Asked first: a caller that fail() wakes may leave at once, and the loss is news all the same.
  const bool news = view()->open();
  fail(Error(ErrorCode::peer_failed, what, options_.server_rank));
  if (!news) return;  // the end of a connection that we have left is none
  board_.add({Notice::Kind::peer_lost, options_.server_rank, what});
  board_.deliver();
}

void TcpStore::fail(Error error) {
  end_connection();
  std::lock_guard lock(mutex_);
  failure_ = std::move(error);
  for (const auto& [id, call] : calls_) call->ready.notify_all();
}

void TcpStore::end_connection() {
  heartbeat_timer_.cancel();
  if (!connection_->open()) return;
  flush_timer_.expires_after(flush_time);
  flush_timer_.async_wait([this](const error_code& error) {
    if (!error) connection_->close();
  });
  connection_->finish([this] { flush_timer_.cancel(); });
}

}  // namespace detail

std::shared_ptr<Store> connect_store(const TcpStoreOptions& options, Deadline deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} is out of range: the job has {} ranks", options.rank, options.size), options.rank);
  }
  if (options.heartbeat_timeout <= std::chrono::milliseconds(0)) {
    throw Error(ErrorCode::invalid_argument, "the store's heartbeat timeout must be positive", options.rank);
  }
  auto io = std::make_unique<boost::asio::io_context>(1);
  detail::Joined joined = detail::join_server(*io, options, deadline);
  return std::make_shared<detail::TcpStore>(options, std::move(io), std::move(joined));
}

}  // namespace tandem

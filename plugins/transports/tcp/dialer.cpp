// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "transports/tcp/handshake.hpp"

namespace tandem::tcp {
namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Another host may own an address that this one knows only from hearsay (bridges of containers): it may take the
// connection and say nothing, so an attempt must end before the next address gets its turn.
constexpr std::chrono::seconds patience{3};
constexpr std::chrono::milliseconds longest_pause{500};

}  // namespace

Dialer::Dialer(asio::io_context& io, const Membership& self, int peer, std::vector<Endpoint> candidates,
               const plugin::Host& host, OnConnected on_connected)
    : io_(io),
      self_(self),
      peer_(peer),
      candidates_(std::move(candidates)),
      host_(host),
      on_connected_(std::move(on_connected)),
      socket_(io),
      timer_(io) {}

void Dialer::stop() {
  stopped_ = true;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
}

void Dialer::attempt() {
  const auto& endpoint = candidates_[next_];
  error_code unopened;
  socket_ = open_socket(io_, endpoint, unopened);
  if (unopened) return failed(unopened.message());
  set_options(socket_, self_.socket_buffer_bytes);
  timer_.expires_after(patience);
  timer_.async_wait([self = shared_from_this()](const error_code& canceled) {
    error_code ignored;
    if (!canceled) self->socket_.close(ignored);
  });
  socket_.async_connect(endpoint, [self = shared_from_this()](const error_code& error) {
    if (error) return self->failed(error.message());
    self->greet();
  });
}

void Dialer::greet() {
  const auto confirmed = [self = shared_from_this()](const error_code& error, std::size_t) {
    if (error) return self->failed(error.message());
    self->timer_.cancel();
    self->host_.log(TANDEM_LOG_DEBUG, "tcp: rank {} reached rank {} at {}", self->self_.rank, self->peer_,
                    describe(self->candidates_[self->next_]));
    self->on_connected_(std::move(self->socket_));
  };
  const auto answered = [self = shared_from_this(), confirmed](const error_code& error, std::size_t) {
    if (error) return self->failed(error.message());
    auto expected = self->self_.hello(Hello::accept, self->self_.rank);
    expected.from = self->peer_;
    if (!(self->hello_ == expected)) return self->failed("somebody else answers there");
    self->hello_ = self->self_.hello(Hello::confirm, self->peer_);
    asio::async_write(self->socket_, asio::buffer(&self->hello_, sizeof(Hello)), confirmed);
  };
  const auto asked = [self = shared_from_this(), answered](const error_code& error, std::size_t) {
    if (error) return self->failed(error.message());
    asio::async_read(self->socket_, asio::buffer(&self->hello_, sizeof(Hello)), answered);
  };
  hello_ = self_.hello(Hello::ask, peer_);
  asio::async_write(socket_, asio::buffer(&hello_, sizeof(Hello)), asked);
}

void Dialer::failed(const std::string& reason) {
  if (stopped_) return;
  host_.log(TANDEM_LOG_DEBUG, "tcp: rank {} did not reach rank {} at {}: {}", self_.rank, peer_,
            describe(candidates_[next_]), reason);
  error_code ignored;
  socket_.close(ignored);
  next_ = (next_ + 1) % candidates_.size();
  const bool tried_all = next_ == 0;
  if (tried_all) pause_ = std::min(2 * pause_, longest_pause);
  // By now the other side had time to listen: who waits for this until the deadline should know what is wrong.
  if (pause_ == longest_pause && !std::exchange(warned_, true)) {
    host_.log(TANDEM_LOG_WARN, "tcp: rank {} cannot reach rank {} and goes on trying: {}", self_.rank, peer_, reason);
  }
  timer_.expires_after(tried_all ? pause_ : std::chrono::milliseconds(0));
  timer_.async_wait([self = shared_from_this()](const error_code& canceled) {
    if (!canceled && !self->stopped_) self->attempt();
  });
}

}  // namespace tandem::tcp

// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/join_server.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "base/bytes.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "bootstrap/resolve.hpp"
#include "bootstrap/wire.hpp"

namespace tandem::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

// A host that swallows packets must not use up the time of the name's other addresses.
constexpr milliseconds most_for_one_address{2000};
constexpr milliseconds first_pause{10};
constexpr milliseconds longest_pause{200};
// Longer first answers are not from a store server.
constexpr std::size_t max_answer = 4096;

// False if the deadline passed first.
bool wait_ready(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const auto left = std::chrono::ceil<milliseconds>(deadline.left());
    const int n = ::poll(&entry, 1, static_cast<int>(std::min(left, milliseconds(60000)).count()));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
    if (deadline.passed()) return false;
  }
}

error_code connect_within(tcp::socket& socket, const tcp::endpoint& endpoint, Deadline deadline) {
  if (::connect(socket.native_handle(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0) return {};
  if (errno != EINPROGRESS) return {errno, boost::system::system_category()};
  if (!wait_ready(socket.native_handle(), POLLOUT, deadline)) return asio::error::timed_out;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_ERROR, &error, &length);
  return {error, boost::system::system_category()};
}

error_code read_within(tcp::socket& socket, asio::mutable_buffer buffer, Deadline deadline) {
  while (buffer.size() > 0) {
    error_code error;
    buffer += socket.read_some(buffer, error);
    if (error == asio::error::would_block) {
      if (!wait_ready(socket.native_handle(), POLLIN, deadline)) return asio::error::timed_out;
    } else if (error) {
      return error;
    }
  }
  return {};
}

// The reason in words, for what happens after the connection stands.
std::string reason_of(const error_code& error) {
  if (error == asio::error::timed_out) return "it accepted the connection, but did not answer";
  if (error == asio::error::eof || error == asio::error::connection_reset) {
    return "it closed the connection without an answer: it serves a job with another token, or is no store server";
  }
  return error.message();
}

// The server's first answer; nothing with `reason` set if there is none that makes sense.
std::optional<wire::Message> read_answer(tcp::socket& socket, Deadline deadline, std::string* reason) {
  std::array<char, wire::length_bytes> length{};
  if (const error_code error = read_within(socket, asio::buffer(length), deadline)) {
    *reason = reason_of(error);
    return std::nullopt;
  }
  const std::size_t bytes = ByteReader(length.data(), length.size()).u32();
  *reason = "its answer is not that of a store server";
  if (bytes > max_answer) return std::nullopt;
  std::string body(bytes, '\0');
  if (const error_code error = read_within(socket, asio::buffer(body), deadline)) {
    *reason = reason_of(error);
    return std::nullopt;
  }
  return wire::decode(body);
}

[[noreturn]] void throw_refusal(const wire::Message& answer, const TcpStoreOptions& options) {
  const bool version = answer.number == static_cast<std::int64_t>(ErrorCode::version_mismatch);
  throw Error(version ? ErrorCode::version_mismatch : ErrorCode::invalid_argument,
              fmt::format("the store server at {} refused: {}", options.endpoint, answer.value), options.rank);
}

// One try at one address: a welcomed connection, or nothing and the reason. Throws if the server refused.
std::optional<Joined> try_join(asio::io_context& io, const tcp::endpoint& endpoint, const TcpStoreOptions& options,
                               Deadline connect_deadline, Deadline deadline, std::string* reason) {
  tcp::socket socket = open_socket(io, endpoint.protocol());
  socket.non_blocking(true);
  if (const error_code error = connect_within(socket, endpoint, connect_deadline)) {
    *reason = error == asio::error::timed_out ? "no connection in time" : error.message();
    return std::nullopt;
  }
  set_stream_options(socket);
  const std::string hello = wire::encode(wire::Hello{wire::version, options.token, options.rank, options.size});
  error_code error;
  if (socket.write_some(asio::buffer(hello), error) != hello.size()) {  // so few bytes fit the fresh socket's buffer
    *reason = reason_of(error);
    return std::nullopt;
  }
  // From here on the server may count this rank as joined: giving up early and coming back would look like a second
  // one.
  const std::optional<wire::Message> answer = read_answer(socket, deadline, reason);
  if (!answer) return std::nullopt;
  if (answer->kind == wire::Kind::refused) throw_refusal(*answer, options);
  if (answer->kind != wire::Kind::welcome || answer->number <= 0) return std::nullopt;
  return Joined{std::move(socket), milliseconds(answer->number)};
}

}  // namespace

Joined join_server(asio::io_context& io, const TcpStoreOptions& options, Deadline deadline) {
  const HostPort where = parse_host_port(options.endpoint);
  const auto begin = Deadline::Clock::now();
  milliseconds pause = first_pause;
  std::string tried = "no address was tried";
  while (true) {
    std::string reason;
    const std::vector<tcp::endpoint> endpoints = resolve(where, deadline, &reason);
    std::vector<std::string> failures;
    if (endpoints.empty()) failures.push_back(reason);
    for (std::size_t i = 0; i < endpoints.size() && !deadline.passed(); ++i) {
      const auto share = std::min<Deadline::Clock::duration>(
          most_for_one_address, deadline.left() / static_cast<std::int64_t>(endpoints.size() - i));
      const bool last = i + 1 == endpoints.size();
      try {
        auto joined = try_join(io, endpoints[i], options, last ? deadline : Deadline::after(share), deadline, &reason);
        if (joined) return std::move(*joined);
      } catch (const boost::system::system_error& e) {
        reason = e.what();
      }
      failures.push_back(fmt::format("{}: {}", format_host_port(endpoints[i]), reason));
    }
    if (!failures.empty()) tried = fmt::format("{}", fmt::join(failures, "; "));
    if (deadline.left() <= pause) break;
    log::debug("rank {} cannot join the store yet: {}", options.rank, tried);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
  }
  throw Error(ErrorCode::timeout,
              fmt::format("rank {} could not join the store at {} within {}: {}", options.rank, options.endpoint,
                          format_duration(Deadline::Clock::now() - begin), tried),
              options.rank);
}

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tandem/error.hpp"
#include "tandem/plugin/transport.h"

namespace tandem::plugin {

constexpr tandem_status status(ErrorCode code) { return static_cast<tandem_status>(code); }

/// What a post is of its lane's operation: see tandem_post_params.
struct LaneUse {
  uint32_t lane = 0;
  bool begin = false;
  bool first = false;
  bool last = false;
};

/// The services of the host, copied field by field as far as the host's struct reaches.
class Host {
 public:
  explicit Host(const tandem_host_services* services) {
    if (!services) return;
    user_ = services->user;
    if (services->struct_size >= offsetof(tandem_host_services, log) + sizeof(services->log)) log_ = services->log;
    if (services->struct_size >= sizeof(tandem_host_services)) peer_failed_ = services->peer_failed;
  }

  template <class... Args>
  void log(int32_t level, fmt::format_string<Args...> format, Args&&... args) const {
    if (log_) log_(user_, level, fmt::format(format, std::forward<Args>(args)...).c_str());
  }
  void peer_failed(int peer, const std::string& reason) const {
    if (peer_failed_) peer_failed_(user_, peer, reason.c_str());
  }

 private:
  void* user_ = nullptr;
  void (*log_)(void*, int32_t, const char*) = nullptr;
  void (*peer_failed_)(void*, int32_t, const char*) = nullptr;
};

/// Runs `body`, which returns a status; no exception leaves. A std::invalid_argument is the caller's fault.
template <class Body>
tandem_status guarded(const Host& host, const char* what, Body&& body) noexcept {
  ErrorCode code = ErrorCode::internal;
  try {
    try {
      return body();
    } catch (const Error& e) {
      code = e.code();
      host.log(TANDEM_LOG_ERROR, "{}: {}", what, e.what());
    } catch (const std::invalid_argument& e) {
      code = ErrorCode::invalid_argument;
      host.log(TANDEM_LOG_ERROR, "{}: {}", what, e.what());
    } catch (const std::bad_alloc& e) {
      code = ErrorCode::out_of_memory;
      host.log(TANDEM_LOG_ERROR, "{}: {}", what, e.what());
    } catch (const std::system_error& e) {
      code = ErrorCode::transport;
      host.log(TANDEM_LOG_ERROR, "{}: {}", what, e.what());
    } catch (const std::exception& e) {
      host.log(TANDEM_LOG_ERROR, "{}: {}", what, e.what());
    }
  } catch (...) {  // even formatting the message failed: the code has to do
  }
  return status(code);
}

/// Throws std::invalid_argument unless `params` describes a group this rank is in.
inline void check_open_params(const tandem_open_params& params) {
  if (params.struct_size < offsetof(tandem_open_params, cuda_device))
    throw std::invalid_argument(fmt::format("open parameters of {} bytes are too small", params.struct_size));
  if (params.size < 1 || params.rank < 0 || params.rank >= params.size)
    throw std::invalid_argument(fmt::format("rank {} is not in a group of {}", params.rank, params.size));
}

/// Hands each option to its parser. Throws std::invalid_argument for one that has none.
inline void parse_options(const tandem_open_params& params,
                          const std::map<std::string, std::function<void(const std::string&)>, std::less<>>& parsers) {
  for (uint64_t i = 0; i < params.option_count; ++i) {
    const auto& option = params.options[i];
    const auto parser = parsers.find(std::string_view(option.key));
    if (parser == parsers.end()) {
      std::string known;
      for (const auto& [key, unused] : parsers) known += (known.empty() ? "" : ", ") + key;
      throw std::invalid_argument(fmt::format("unknown option '{}'; known are: {}", option.key, known));
    }
    parser->second(option.value);
  }
}

inline uint64_t parse_number(std::string_view key, const std::string& value, uint64_t low, uint64_t high) {
  uint64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc{} || stop != end || number < low || number > high)
    throw std::invalid_argument(fmt::format("option {}={} is not a number from {} to {}", key, value, low, high));
  return number;
}

/// The transfers of a post, read with the caller's stride. Throws std::invalid_argument naming the one that is wrong.
inline std::vector<tandem_transfer> read_each_transfer(const tandem_post_params& params, int rank, int size) {
  std::vector<tandem_transfer> transfers;
  transfers.reserve(params.count);
  const auto* at = reinterpret_cast<const char*>(params.transfers);
  for (uint64_t i = 0; i < params.count; ++i) {
    const auto& given = *reinterpret_cast<const tandem_transfer*>(at);
    if (given.struct_size < offsetof(tandem_transfer, remote_region))
      throw std::invalid_argument(fmt::format("transfer {}: a struct of {} bytes is too small", i, given.struct_size));
    if (given.peer < 0 || given.peer >= size || given.peer == rank)
      throw std::invalid_argument(
          fmt::format("transfer {}: {} is not a peer of rank {} of {}", i, given.peer, rank, size));
    if (given.direction != TANDEM_SEND && given.direction != TANDEM_RECEIVE)
      throw std::invalid_argument(
          fmt::format("transfer {}: direction {} is neither send nor receive", i, given.direction));
    tandem_transfer t{};
    std::memcpy(&t, &given, static_cast<std::size_t>(std::min<uint64_t>(given.struct_size, sizeof(t))));
    t.struct_size = sizeof(t);
    transfers.push_back(t);
    at += given.struct_size;
  }
  return transfers;
}

/// Those of a host-driven transport.
inline std::vector<tandem_transfer> read_transfers(const tandem_post_params& params, int rank, int size) {
  if (params.struct_size < offsetof(tandem_post_params, lane) || !params.on_complete)
    throw std::invalid_argument("post parameters are too small or have no completion function");
  if (params.stream) throw std::invalid_argument("a stream was given, but this transport knows none");
  std::vector<tandem_transfer> transfers = read_each_transfer(params, rank, size);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (!transfers[i].buffer && transfers[i].bytes > 0)
      throw std::invalid_argument(fmt::format("transfer {}: no buffer for {} bytes", i, transfers[i].bytes));
  }
  return transfers;
}

/// Those of a stream-ordered one. What a one-sided transport receives needs no buffer.
inline std::vector<tandem_transfer> read_stream_transfers(const tandem_post_params& params, int rank, int size,
                                                          uint32_t flag_limit, bool one_sided) {
  if (params.struct_size < offsetof(tandem_post_params, last) + sizeof(params.last))
    throw std::invalid_argument("post parameters are too small for a stream-ordered transport");
  if (params.on_complete) throw std::invalid_argument("a stream-ordered transport reports no completions");
  std::vector<tandem_transfer> transfers = read_each_transfer(params, rank, size);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const tandem_transfer& t = transfers[i];
    if (t.flag >= flag_limit)
      throw std::invalid_argument(fmt::format("transfer {}: flag {}; there are {}", i, t.flag, flag_limit));
    if ((t.direction == TANDEM_SEND || !one_sided) && !t.buffer && t.bytes > 0)
      throw std::invalid_argument(fmt::format("transfer {}: no buffer for {} bytes", i, t.bytes));
  }
  return transfers;
}

}  // namespace tandem::plugin

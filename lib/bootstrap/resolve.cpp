// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/resolve.hpp"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/thread.hpp"

namespace tandem::detail {
namespace {

using boost::asio::ip::tcp;

struct Answer {
  int code = 0;  // of getaddrinfo
  int system_code = 0;
  std::vector<tcp::endpoint> endpoints;
};

Answer ask(const HostPort& where, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Answer answer;
  answer.code = ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list);
  answer.system_code = errno;
  if (answer.code != 0) return answer;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    std::copy_n(reinterpret_cast<const char*>(entry->ai_addr), entry->ai_addrlen,
                reinterpret_cast<char*>(endpoint.data()));
    endpoint.resize(entry->ai_addrlen);
    answer.endpoints.push_back(endpoint);
  }
  return answer;
}

std::string reason_of(const Answer& answer) {
  if (answer.code == EAI_SYSTEM) return std::generic_category().message(answer.system_code);
  return answer.code == 0 ? "it has no address" : ::gai_strerror(answer.code);
}

// All that the thread of a lookup touches. It may outlive the caller, and main() too, so that it owns this together
// with the caller, and neither logs, nor throws, nor looks at anything static of this library.
struct Lookup {
  explicit Lookup(HostPort w) : where(std::move(w)) {}

  void run() noexcept {
    Answer found;
    try {
      found = ask(where, 0);
    } catch (...) {  // only memory can fail here
      found.code = EAI_MEMORY;
    }
    const std::lock_guard lock(mutex);
    answer = std::move(found);
    done = true;
    changed.notify_all();
  }

  const HostPort where;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Answer answer;
};

}  // namespace

std::vector<tcp::endpoint> resolve(const HostPort& where, Deadline deadline, std::string* reason) {
  // An address in text is parsed on the spot; only for a name may the resolver go and ask others.
  if (Answer numeric = ask(where, AI_NUMERICHOST); numeric.code == 0) return std::move(numeric.endpoints);
  const auto lookup = std::make_shared<Lookup>(where);
  std::thread thread;
  try {
    thread = start_thread([lookup] { lookup->run(); });
  } catch (const std::system_error& e) {
    *reason = fmt::format("cannot start a thread to resolve {}: {}", where.host, e.code().message());
    return {};
  }
  std::unique_lock lock(lookup->mutex);
  const bool done = lookup->changed.wait_until(lock, deadline.time(), [&] { return lookup->done; });
  lock.unlock();
  if (!done) {
    // The resolver cannot be told to stop, and may take minutes where a name server is silent: to join would break the
    // deadline. So the thread is let go; see Lookup for why that is safe.
    thread.detach();
    *reason = fmt::format("the name {} was not resolved in time", where.host);
    return {};
  }
  thread.join();
  if (lookup->answer.endpoints.empty()) {
    *reason = fmt::format("cannot resolve {}: {}", where.host, reason_of(lookup->answer));
  }
  return std::move(lookup->answer.endpoints);
}

}  // namespace tandem::detail

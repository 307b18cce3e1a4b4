// SPDX-License-Identifier: Apache-2.0
#include "comm/routes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.hpp"

namespace tandem::detail {

namespace {

/// What a rank says of a transport: its address there, or why it cannot open it.
struct Opened {
  std::string address;
  std::string refusal;

  std::string encode() const {
    ByteWriter w;
    w.string(address);
    w.string(refusal);
    return w.take();
  }
  static Opened decode(const std::string& bytes) {
    ByteReader r(bytes);
    Opened o;
    o.address = r.string();
    o.refusal = r.string();
    r.expect_end();
    return o;
  }
};

std::string encode(const std::vector<std::string>& list) {
  ByteWriter w;
  for (const std::string& s : list) w.string(s);
  return w.take();
}

std::vector<std::string> decode(const std::string& bytes, int size) {
  ByteReader r(bytes);
  std::vector<std::string> list;
  for (int i = 0; i < size; ++i) list.push_back(r.string());
  r.expect_end();
  return list;
}

/// The search for several transports: what all ranks know of all pairs.
class Search {
 public:
  explicit Search(const RouteSearch& s)
      : s_(s), served_(pairs(), false), rejected_(pairs()), routes_(static_cast<std::size_t>(s.size)) {}

  std::vector<Route> run() {
    for (std::size_t i = 0; i < s_.transports.size() && !all_served(); ++i)
      try_transport(s_.transports[i], i + 1 == s_.transports.size());
    for (int a = 0; a < s_.size; ++a) {
      for (int b = 0; b < a; ++b) {
        if (served_[pair(a, b)]) continue;
        s_.disagree(
            Error(ErrorCode::transport,
                  fmt::format("rank {} and rank {} have no route to each other: {}", b, a, rejected_[pair(a, b)]), a));
      }
    }
    return std::move(routes_);
  }

 private:
  std::size_t pairs() const { return static_cast<std::size_t>(s_.size) * static_cast<std::size_t>(s_.size); }
  std::size_t pair(int a, int b) const {
    return static_cast<std::size_t>(std::min(a, b)) * static_cast<std::size_t>(s_.size) +
           static_cast<std::size_t>(std::max(a, b));
  }
  bool all_served() const {
    for (int a = 0; a < s_.size; ++a) {
      for (int b = 0; b < a; ++b) {
        if (!served_[pair(a, b)]) return false;
      }
    }
    return true;
  }

  void try_transport(const std::string& name, bool last) {
    Opened mine;
    std::shared_ptr<Endpoint> endpoint;
    try {
      endpoint = s_.open(name);
      mine.address = endpoint->address();
    } catch (const Error& e) {
      endpoint.reset();
      mine.refusal = *e.what() != '\0' ? e.what() : "it cannot be opened";
    }
    std::vector<std::string> addresses;
    std::string refusal;
    const std::vector<std::string> opened = s_.collect("open " + name, mine.encode());
    for (int r = 0; r < s_.size; ++r) {
      const Opened theirs = Opened::decode(opened[static_cast<std::size_t>(r)]);
      addresses.push_back(theirs.address);
      if (refusal.empty() && !theirs.refusal.empty()) refusal = fmt::format("rank {}: {}", r, theirs.refusal);
    }
    std::vector<std::string> failures(static_cast<std::size_t>(s_.size), refusal);
    if (refusal.empty()) {
      // The others that may follow need their time, too.
      const Deadline::Clock::duration left = s_.deadline.time() - Deadline::Clock::now();
      failures = endpoint->try_connect(addresses, last ? s_.deadline : Deadline::at(s_.deadline.time() - left / 2));
      note(name, endpoint, s_.collect("connect " + name, encode(failures)));
      return;
    }
    note(name, nullptr, std::vector<std::string>(static_cast<std::size_t>(s_.size), encode(failures)));
  }

  // A pair is served if each reached the other.
  void note(const std::string& name, const std::shared_ptr<Endpoint>& endpoint, const std::vector<std::string>& all) {
    std::vector<std::vector<std::string>> failures;
    for (const std::string& bytes : all) failures.push_back(decode(bytes, s_.size));
    for (int a = 0; a < s_.size; ++a) {
      for (int b = 0; b < a; ++b) {
        const std::size_t at = pair(a, b);
        if (served_[at]) continue;
        const std::string& one = failures[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
        const std::string& other = failures[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)];
        const std::string& why = one.empty() ? other : one;
        served_[at] = why.empty();
        if (!served_[at]) {
          rejected_[at] += fmt::format("{}{}: {}", rejected_[at].empty() ? "" : "; ", name, why);
        } else if (a == s_.rank || b == s_.rank) {
          const int peer = a == s_.rank ? b : a;
          routes_[static_cast<std::size_t>(peer)] = {
              endpoint, rejected_[at].empty() ? fmt::format("the first choice, {}", s_.why)
                                              : fmt::format("{}, as others were rejected: {}", s_.why, rejected_[at])};
        }
      }
    }
  }

  const RouteSearch& s_;
  std::vector<bool> served_;           // by pair
  std::vector<std::string> rejected_;  // what was, and why
  std::vector<Route> routes_;
};

}  // namespace

std::vector<Route> find_routes(const RouteSearch& s) {
  if (s.transports.size() > 1) return Search(s).run();
  const std::string& name = s.transports.front();
  const std::shared_ptr<Endpoint> endpoint = s.open(name);
  const std::vector<std::string> addresses = s.collect("open " + name, endpoint->address());
  endpoint->connect(addresses, s.deadline);
  std::vector<Route> routes(static_cast<std::size_t>(s.size), Route{endpoint, s.why});
  routes[static_cast<std::size_t>(s.rank)] = {};
  return routes;
}

std::vector<std::string> split_names(const std::string& list) {
  std::vector<std::string> names;
  std::size_t from = 0;
  while (from <= list.size()) {
    const std::size_t to = std::min(list.find(',', from), list.size());
    std::string name = list.substr(from, to - from);
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    names.push_back(std::move(name));
    from = to + 1;
  }
  return names;
}

}  // namespace tandem::detail

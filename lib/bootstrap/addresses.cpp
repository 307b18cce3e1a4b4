// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/addresses.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "bootstrap/asio.hpp"
#include "tandem/error.hpp"

namespace tandem::detail {
namespace {

namespace ip = boost::asio::ip;

std::optional<ip::address> address_of(const sockaddr* raw) {
  if (raw->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(raw);
    return ip::address_v4(ntohl(in->sin_addr.s_addr));
  }
  if (raw->sa_family == AF_INET6) {
    const auto* in = reinterpret_cast<const sockaddr_in6*>(raw);
    ip::address_v6::bytes_type bytes;
    std::copy_n(in->sin6_addr.s6_addr, bytes.size(), bytes.begin());
    return ip::address_v6(bytes, in->sin6_scope_id);
  }
  return std::nullopt;
}

bool is_link_local(const ip::address& a) {
  if (a.is_v6()) return a.to_v6().is_link_local();
  return (a.to_v4().to_uint() >> 16) == 0xA9FE;  // 169.254.0.0/16
}

std::string list(const std::vector<InterfaceAddress>& all) {
  std::string text;
  for (const InterfaceAddress& a : all) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", a.interface, a.address, a.up ? "" : " (down)");
  }
  return text.empty() ? "none" : text;
}

// An address equals another if they mean the same, however they are written.
bool same_address(const std::string& a, const std::string& b) {
  boost::system::error_code bad_a, bad_b;
  const ip::address x = ip::make_address(a, bad_a);
  const ip::address y = ip::make_address(b, bad_b);
  return !bad_a && !bad_b && x == y;
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, 128> text{};
  const ssize_t n = ::readlink(path, text.data(), text.size());
  return n > 0 ? std::string(text.data(), static_cast<std::size_t>(n)) : std::string();
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error(ErrorCode::transport, "cannot list the network interfaces: " + std::generic_category().message(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const std::optional<ip::address> address = address_of(entry->ifa_addr);
    if (!address) continue;
    all.push_back({entry->ifa_name, address->to_string(), address->is_v6(), address->is_loopback(),
                   is_link_local(*address), (entry->ifa_flags & IFF_UP) != 0});
  }
  return all;
}

std::vector<std::string> select_addresses(const std::vector<InterfaceAddress>& all,
                                          const std::optional<std::string>& wanted) {
  std::vector<InterfaceAddress> chosen;
  for (const InterfaceAddress& a : all) {
    if (!a.up || (wanted && a.interface != *wanted && !same_address(a.address, *wanted))) continue;
    chosen.push_back(a);
  }
  const auto has_other = [&](const InterfaceAddress& a) {
    return std::any_of(chosen.begin(), chosen.end(),
                       [&](const InterfaceAddress& b) { return b.interface == a.interface && !b.link_local; });
  };
  std::vector<InterfaceAddress> kept;
  for (const InterfaceAddress& a : chosen) {
    // Without a wish, an interface that has nothing but a link-local address (a management port, say) is no candidate.
    if (!a.link_local || (wanted && !has_other(a))) kept.push_back(a);
  }
  if (kept.empty()) {
    throw Error(ErrorCode::invalid_argument,
                wanted ? fmt::format("'{}' is no interface or address of this host that is up; there are: {}", *wanted,
                                     list(all))
                       : fmt::format("this host has no usable network address; there are: {}", list(all)));
  }
  std::stable_sort(kept.begin(), kept.end(), [](const InterfaceAddress& a, const InterfaceAddress& b) {
    return std::pair(a.loopback, a.v6) < std::pair(b.loopback, b.v6);
  });
  std::vector<std::string> texts;
  for (const InterfaceAddress& a : kept) texts.push_back(a.address);
  return texts;
}

std::string local_address_for(const std::string& interface_or_address) {
  return select_addresses(interface_addresses(), interface_or_address).front();
}

std::vector<std::string> advertised_addresses(const std::optional<std::string>& interface) {
  return select_addresses(interface_addresses(), interface);
}

std::string host_identity() {
  struct stat shared_memory {};
  const bool known = ::stat("/dev/shm", &shared_memory) == 0;
  return fmt::format("{}/{}/{}/{}", first_line("/proc/sys/kernel/random/boot_id"), link_target("/proc/self/ns/pid"),
                     link_target("/proc/self/ns/net"), known ? std::to_string(shared_memory.st_dev) : "none");
}

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tandem::detail {

/// One address of a network interface of this host.
struct InterfaceAddress {
  std::string interface;
  std::string address;  ///< text; an IPv6 link-local one carries its scope: "fe80::1%eth0"
  bool v6 = false;
  bool loopback = false;
  bool link_local = false;
  bool up = true;
};

/// All of them, in the system's order. Throws transport if the system does not tell.
std::vector<InterfaceAddress> interface_addresses();

/// The addresses among `all` under which other ranks may find this one, best first: those of the network before
/// loopback, IPv4 before IPv6. Interfaces that are down are skipped. Link-local addresses mean nothing on another host,
/// so they are used only where an interface has no other, or if asked for by themselves. `wanted` is an interface's
/// name or an address and narrows the choice to it. Throws invalid_argument, listing what there is, if nothing is left.
std::vector<std::string> select_addresses(const std::vector<InterfaceAddress>& all,
                                          const std::optional<std::string>& wanted);

/// The address to bind for an interface name ("eth0") or an address of this host. Errors as select_addresses().
std::string local_address_for(const std::string& interface_or_address);

/// Addresses that others on this or other hosts may try, in order; those of loopback come last and make sense only
/// where host_identity() is the same. TANDEM_INTERFACE narrows them.
std::vector<std::string> advertised_addresses(const std::optional<std::string>& interface);

/// Equal for two processes exactly if they can share memory and loopback: same boot of the same kernel, and the same
/// process, network and shared-memory namespaces. A host name does not say that: containers may share one.
std::string host_identity();

}  // namespace tandem::detail

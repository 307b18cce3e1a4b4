// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/addresses.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/sockets.hpp"
#include "unit/bootstrap/worlds.hpp"

namespace tandem::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

const std::vector<InterfaceAddress> host = {
    {.interface = "lo", .address = "127.0.0.1", .loopback = true},
    {.interface = "lo", .address = "::1", .v6 = true, .loopback = true},
    {.interface = "eth0", .address = "fe80::1%eth0", .v6 = true, .link_local = true},
    {.interface = "eth0", .address = "fd00::1", .v6 = true},
    {.interface = "eth0", .address = "10.0.0.1"},
    {.interface = "eth1", .address = "10.1.0.1", .up = false},
    {.interface = "mgmt", .address = "fe80::2%mgmt", .v6 = true, .link_local = true},
};

TEST(Addresses, TheNetworkComesBeforeLoopbackAndDownInterfacesAreSkipped) {
  EXPECT_THAT(select_addresses(host, std::nullopt), ElementsAre("10.0.0.1", "fd00::1", "127.0.0.1", "::1"));
}

TEST(Addresses, AnInterfaceOrAnAddressNarrowsTheChoice) {
  EXPECT_THAT(select_addresses(host, "eth0"), ElementsAre("10.0.0.1", "fd00::1"));
  EXPECT_THAT(select_addresses(host, "lo"), ElementsAre("127.0.0.1", "::1"));
  EXPECT_THAT(select_addresses(host, "fd00:0::1"), ElementsAre("fd00::1"));
  EXPECT_THAT(select_addresses(host, "10.0.0.1"), ElementsAre("10.0.0.1"));
}

TEST(Addresses, LinkLocalIsUsedOnlyWhereThereIsNothingElse) {
  EXPECT_THAT(select_addresses(host, "mgmt"), ElementsAre("fe80::2%mgmt"));
}

TEST(Addresses, WhatIsNotThereIsAnErrorThatListsWhatIs) {
  for (const char* wanted : {"eth9", "eth1", "10.1.0.1", "192.168.0.1", ""}) {
    const Error e = error_of(ErrorCode::invalid_argument, [&] { select_addresses(host, wanted); });
    EXPECT_THAT(e.what(), AllOf(HasSubstr(wanted), HasSubstr("eth0 10.0.0.1"), HasSubstr("eth1 10.1.0.1 (down)")));
  }
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { select_addresses({}, std::nullopt); }).what(),
              HasSubstr("none"));
}

TEST(Addresses, LoopbackOfThisHostIsFound) {
  EXPECT_EQ(local_address_for("lo"), "127.0.0.1");
  EXPECT_EQ(local_address_for("127.0.0.1"), "127.0.0.1");
  error_of(ErrorCode::invalid_argument, [] { local_address_for("no-such-interface"); });
}

TEST(Addresses, WhatIsAdvertisedCanBeBoundAndReached) {
  for (const std::string& address : advertised_addresses(std::nullopt)) {
    StoreServerOptions options;
    options.address = address;
    const auto server = StoreServer::start(options);
    TcpStoreOptions client;
    const bool v6 = address.find(':') != std::string::npos;
    client.endpoint = (v6 ? "[" + address + "]" : address) + ":" + std::to_string(server->port());
    const auto store = connect_store(client, testing::soon());
    store->set("key", "value", testing::soon());
    EXPECT_EQ(store->get("key", testing::soon()), "value") << address;
  }
}

TEST(Addresses, TheHostIdentityIsStable) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GT(host_identity().size(), 36U);
}

TEST(HostPort, Parses) {
  EXPECT_EQ(parse_host_port("host.example:80").host, "host.example");
  EXPECT_EQ(parse_host_port("host.example:80").port, 80);
  EXPECT_EQ(parse_host_port("[::1]:65535").host, "::1");
  EXPECT_EQ(parse_host_port("[::1]:65535").port, 65535);
  EXPECT_EQ(parse_host_port("[fe80::1%eth0]:1").host, "fe80::1%eth0");
  for (const char* bad : {"", "a", "a:", ":1", "a:0", "a:-1", "a:65536", "a:1 ", "::1:1", "[::1]", "[]:1", "[a:1"}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { parse_host_port(bad); }).what(), HasSubstr(bad));
  }
}

}  // namespace
}  // namespace tandem::detail

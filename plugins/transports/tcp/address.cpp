// SPDX-License-Identifier: Apache-2.0
#include "transports/tcp/address.hpp"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>

#include "base/bytes.hpp"

namespace tandem::tcp {

std::string Address::encode() const {
  detail::ByteWriter writer;
  writer.string(host);
  writer.u16(port);
  writer.u32(static_cast<std::uint32_t>(addresses.size()));
  for (const auto& address : addresses) writer.string(address);
  writer.string(local_name);
  return writer.take();
}

Address Address::decode(std::string_view bytes) {
  detail::ByteReader reader(bytes);
  Address result;
  result.host = reader.string();
  result.port = reader.u16();
  const auto count = reader.count(sizeof(std::uint32_t));
  for (std::size_t i = 0; i < count; ++i) result.addresses.push_back(reader.string());
  result.local_name = reader.string();
  reader.expect_end();
  return result;
}

std::vector<Endpoint> Address::candidates(const std::string& own_host) const {
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  for (const auto& text : addresses) {
    boost::system::error_code not_an_address;
    const auto address = boost::asio::ip::make_address(text, not_an_address);
    if (not_an_address || (address.is_loopback() && host != own_host)) continue;
    endpoints.emplace_back(address, port);
  }
  std::stable_partition(endpoints.begin(), endpoints.end(), [](const auto& e) { return e.address().is_loopback(); });
  std::vector<Endpoint> all(endpoints.begin(), endpoints.end());
  if (!local_name.empty() && host == own_host) all.insert(all.begin(), local_endpoint(local_name));
  return all;
}

}  // namespace tandem::tcp

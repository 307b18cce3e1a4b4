// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "conformance/mesh.hpp"

extern "C" const tandem_transport* tandem_transport_query_v0_loopback(void);
extern "C" const tandem_transport* tandem_transport_query_v0_tcp(void);

namespace tandem::conformance {

/// A transport and how it is set up: the suite runs once for each.
struct Setup {
  const char* name;
  tandem_transport_query_fn query;
  Options options;
};

inline std::ostream& operator<<(std::ostream& out, const Setup& setup) { return out << setup.name; }

class Conformance : public ::testing::TestWithParam<Setup> {
 protected:
  const tandem_transport& transport() const { return *GetParam().query(); }
  const Options& options() const { return GetParam().options; }
};

inline std::vector<Setup> all_setups() {
  return {
      {"loopback", &tandem_transport_query_v0_loopback, {}},
      {"loopback_delayed", &tandem_transport_query_v0_loopback, {{"delay_us", "300"}, {"seed", "3"}}},
      {"tcp", &tandem_transport_query_v0_tcp, {{"unix_sockets", "0"}}},
      {"tcp_small",
       &tandem_transport_query_v0_tcp,
       {{"unix_sockets", "0"}, {"segment_bytes", "1500"}, {"socket_buffer_bytes", "8192"}}},
      {"tcp_unix", &tandem_transport_query_v0_tcp, {}},
      {"tcp_unix_small", &tandem_transport_query_v0_tcp, {{"segment_bytes", "1500"}, {"socket_buffer_bytes", "8192"}}},
      {"tcp_repeated", &tandem_transport_query_v0_tcp, {{"segment_bytes", "1500"}, {"repeat", "3"}}}};
}

inline std::string setup_name(const ::testing::TestParamInfo<Setup>& info) { return info.param.name; }

#if defined(__SANITIZE_THREAD__)
constexpr bool thread_sanitized = true;
#elif defined(__has_feature)
constexpr bool thread_sanitized = __has_feature(thread_sanitizer);
#else
constexpr bool thread_sanitized = false;
#endif

/// Sanitizers slow bulk work down by about ten times.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
#else
constexpr bool sanitized = false;
#endif

}  // namespace tandem::conformance

// SPDX-License-Identifier: Apache-2.0
#include "support/grouped_transport.hpp"

#include <memory>

#include "comm/plugin_host.hpp"
#include "support/double_context.hpp"
#include "support/grouped_world.hpp"

namespace tandem::testing {

namespace {

struct GroupedContext : DoubleContext<GroupedWorld> {
  using DoubleContext::DoubleContext;
  void flush(Stream stream, std::uint32_t lane) { world().flush(rank(), *stream, lane); }
};

struct Transport {
  using Context = GroupedContext;
  static constexpr std::uint32_t capabilities = TANDEM_CAP_STREAM_ORDERED;
  static constexpr const char* name = "grouped";
  static constexpr const char* description = "ranks of one process over streams of host devices in groups, for tests";
  static constexpr const char* option_help = "";
  static constexpr std::uint32_t flags = 6144;
  static constexpr std::uint32_t lanes = 6;

  static std::unique_ptr<Context> open(const tandem_open_params& params, const plugin::Host& host) {
    return std::make_unique<Context>(params, host);
  }
};

}  // namespace

void register_grouped_transport() {
  static const bool once = [] {
    detail::add_transport(plugin::TransportTable<Transport>::table);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace tandem::testing

// SPDX-License-Identifier: Apache-2.0
#include "transports/common/table.hpp"
#include "transports/nccl/context.hpp"

namespace tandem::nccl {
namespace {

struct Transport {
  using Context = nccl::Context;
  static constexpr std::uint32_t capabilities =
      TANDEM_CAP_STREAM_ORDERED | TANDEM_CAP_DEVICE_MEMORY | TANDEM_CAP_GRAPH_CAPTURE;
  static constexpr const char* name = "nccl";
  static constexpr const char* description =
      "GPUs of one host or many: NCCL's sends and receives, a group for each step";
  static constexpr const char* option_help =
      "shared_gpus: 1 lets ranks share a GPU, which NCCL by itself may refuse (0)\n";
  static constexpr std::uint32_t flags = FlagWords::flags;
  static constexpr std::uint32_t lanes = FlagWords::lanes;

  static std::unique_ptr<Context> open(const tandem_open_params& params, const plugin::Host& host) {
    if (params.struct_size < sizeof(tandem_open_params) || params.cuda_device < 0)
      throw std::invalid_argument("it moves GPU memory, and this rank has no GPU");
    Membership self;
    plugin::parse_options(params, {{"shared_gpus", [&](auto& value) {
                                      self.may_share_gpus = plugin::parse_number("shared_gpus", value, 0, 1) == 1;
                                    }}});
    self.rank = params.rank;
    self.size = params.size;
    self.device = params.cuda_device;
    return std::make_unique<Context>(self, host, library());
  }

  static std::string why_unavailable() { return nccl::why_unavailable(); }
};

}  // namespace
}  // namespace tandem::nccl

extern "C" const tandem_transport* tandem_transport_query_v0_nccl(void) {
  return &tandem::plugin::TransportTable<tandem::nccl::Transport>::table;
}

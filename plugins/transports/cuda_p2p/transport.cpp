// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "transports/common/table.hpp"
#include "transports/cuda_p2p/context.hpp"

namespace tandem::cuda_p2p {
namespace {

struct Transport {
  using Context = cuda_p2p::Context;
  static constexpr std::uint32_t capabilities = TANDEM_CAP_STREAM_ORDERED | TANDEM_CAP_ZERO_SM |
                                                TANDEM_CAP_DEVICE_MEMORY | TANDEM_CAP_GRAPH_CAPTURE |
                                                TANDEM_CAP_ONE_SIDED;
  static constexpr const char* name = "cuda_p2p";
  static constexpr const char* description =
      "GPUs of one host: copy engines push into memory of the peer, no multiprocessor is used";
  static constexpr const char* option_help =
      "kernel_bytes: what goes to a peer at once and has no more bytes is copied by a kernel: quick, but on SMs (0)\n"
      "streams: that push the chunks for a peer by turns (3)\n"
      "repeat: how often every byte is pushed, for measurements that play a slower link (1)\n";
  static constexpr std::uint32_t flags = Board::flags;
  static constexpr std::uint32_t lanes = Board::lanes;

  static std::unique_ptr<Context> open(const tandem_open_params& params, const plugin::Host& host) {
    if (params.struct_size < sizeof(tandem_open_params) || params.cuda_device < 0)
      throw std::invalid_argument("it moves GPU memory, and this rank has no GPU");
    Membership self;
    plugin::parse_options(
        params,
        {{"kernel_bytes", [&](auto& v) { self.kernel_bytes = plugin::parse_number("kernel_bytes", v, 0, UINT64_MAX); }},
         {"streams", [&](auto& v) { self.streams = plugin::parse_number("streams", v, 1, 16); }},
         {"repeat", [&](auto& v) { self.repeat = static_cast<int>(plugin::parse_number("repeat", v, 1, 1000)); }}});
    std::memcpy(self.group.data(), params.group, self.group.size());
    self.rank = params.rank;
    self.size = params.size;
    self.device = params.cuda_device;
    return std::make_unique<Context>(self, host);
  }
};

}  // namespace
}  // namespace tandem::cuda_p2p

extern "C" const tandem_transport* tandem_transport_query_v0_cuda_p2p(void) {
  return &tandem::plugin::TransportTable<tandem::cuda_p2p::Transport>::table;
}

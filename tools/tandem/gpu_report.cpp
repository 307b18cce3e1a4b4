// SPDX-License-Identifier: Apache-2.0
#include "gpu_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/plugin_host.hpp"

namespace tandem::cli {

using detail::Gpu;
using detail::GpuPair;
using detail::Topology;
using nlohmann::json;

namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// What transports may ask of a GPU: key of the JSON output, words of the text, and whether cuda_p2p cannot do without.
struct Ability {
  const char* key;
  const char* words;
  bool Gpu::*has;
  bool of_peer_memory;
};
constexpr std::array<Ability, 6> abilities{{
    {"virtual_memory", "virtual memory management", &Gpu::virtual_memory, true},
    {"file_descriptor_export", "export of memory as file descriptors", &Gpu::file_descriptor_export, true},
    {"stream_wait_and_write", "streams that wait for and write words", &Gpu::stream_wait_and_write, true},
    {"stream_wait_and_write_64", "the same with 64 bits", &Gpu::stream_wait_and_write_64, false},
    {"host_registration", "registration of host memory", &Gpu::host_registration, true},
    {"registered_at_own_address", "registered memory at its own address", &Gpu::registered_at_own_address, true},
}};

std::string listed(const Gpu& gpu, bool has) {
  std::vector<std::string> words;
  for (const Ability& a : abilities) {
    if (gpu.*a.has == has) words.emplace_back(a.words);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string link_of(const Topology& topology, const Gpu& from, const Gpu& to) {
  return from.ordinal == to.ordinal ? "X" : topology.pair(from.ordinal, to.ordinal).link();
}

std::string legend(const Topology& topology) {
  constexpr std::array<std::pair<const char*, const char*>, 8> meanings{{
      {"NV", "NV#   that many NVLinks"},
      {"PSB", "PSB   one PCIe switch, on the board of both"},
      {"PIX", "PIX   at most one PCIe bridge"},
      {"PXB", "PXB   several PCIe bridges, no host bridge"},
      {"PHB", "PHB   a PCIe host bridge, as a rule the CPU"},
      {"NODE", "NODE  PCIe host bridges of one NUMA node"},
      {"SYS", "SYS   PCIe and the way between NUMA nodes"},
      {"?", "?     not known"},
  }};
  std::set<std::string> used;
  for (const GpuPair& p : topology.pairs) used.insert(p.nvlinks > 0 ? "NV" : p.link());
  std::string text = "  X     itself\n";
  for (const auto& [name, meaning] : meanings) {
    if (used.contains(name)) text += fmt::format("  {}\n", meaning);
  }
  return text;
}

/// "all", "none", or the pairs that lack it: of many GPUs as a rule all are alike.
std::string pairs_with(const Topology& topology, bool GpuPair::*has) {
  std::vector<std::string> without;
  for (const GpuPair& p : topology.pairs) {
    if (!(p.*has)) without.push_back(fmt::format("{} to {}", p.from, p.to));
  }
  if (without.empty()) return "between all";
  if (without.size() == topology.pairs.size()) return "between none";
  return fmt::format("not from {}", fmt::join(without, ", "));
}

std::string nvlink_text(const Gpu& gpu) {
  const auto& links = gpu.nvlinks;
  if (links.count() == 0) return "none active";
  const std::string rate =
      links.megabytes_per_s > 0 ? fmt::format(" of {:.1f} GB/s each way", links.megabytes_per_s / 1000.0) : "";
  const std::string where = links.to_switch == links.count() ? ", to switches" : "";
  return fmt::format("{}{}{}", links.count(), rate, where);
}

std::string one_gpu_text(const Topology& topology, const Gpu& gpu) {
  std::string text = fmt::format(
      "  gpu {:<8} {}, {}\n  {:<12} {}, {}, compute capability {}.{}, {} multiprocessors, {} copy engines\n",
      gpu.ordinal, gpu.name, gpu.uuid, "", gpu.pci.text(), detail::format_bytes(gpu.memory_bytes), gpu.compute_major,
      gpu.compute_minor, gpu.multiprocessors, gpu.copy_engines);
  if (topology.no_links.empty()) text += fmt::format("  {:<12} NVLinks: {}\n", "", nvlink_text(gpu));
  for (const bool has : {true, false}) {
    if (const std::string list = listed(gpu, has); !list.empty())
      text += fmt::format("  {:<12} {}: {}\n", "", has ? "has" : "lacks", list);
  }
  return text;
}

json one_gpu_json(const Gpu& gpu) {
  json can = json::object();
  for (const Ability& a : abilities) can[a.key] = gpu.*a.has;
  return {{"ordinal", gpu.ordinal},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci", gpu.pci.text()},
          {"numa_node", gpu.numa_node},
          {"memory_bytes", gpu.memory_bytes},
          {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
          {"multiprocessors", gpu.multiprocessors},
          {"copy_engines", gpu.copy_engines},
          {"nvlinks", gpu.nvlinks.count()},
          {"nvlinks_to_switches", gpu.nvlinks.to_switch},
          {"nvlink_megabytes_per_s", gpu.nvlinks.megabytes_per_s},
          {"can", can}};
}

}  // namespace

std::string link_matrix(const Topology& topology) {
  if (topology.gpus.empty()) return "";
  std::string text = fmt::format("  {:<7}", "");
  const auto name = [](const Gpu& gpu) { return fmt::format("gpu{}", gpu.ordinal); };
  for (const Gpu& to : topology.gpus) text += fmt::format("{:<7}", name(to));
  text += "NUMA\n";
  for (const Gpu& from : topology.gpus) {
    text += fmt::format("  {:<7}", name(from));
    for (const Gpu& to : topology.gpus) text += fmt::format("{:<7}", link_of(topology, from, to));
    text += from.numa_node < 0 ? "?\n" : fmt::format("{}\n", from.numa_node);
  }
  return text + "\n" + legend(topology);
}

std::string gpu_text(const Topology& topology) {
  const std::string driver = topology.cuda_driver > 0 ? "CUDA " + version_text(topology.cuda_driver) : "none";
  const std::string release = topology.driver_release.empty() ? "" : " (" + topology.driver_release + ")";
  std::string text = fmt::format("  driver       {}{}\n", driver, release);
  text += fmt::format("  runtime      {}\n",
                      topology.cuda_runtime > 0 ? "CUDA " + version_text(topology.cuda_runtime) : "none in this build");
  if (topology.gpus.empty()) return text + fmt::format("  none         {}\n", topology.no_gpus);
  for (const Gpu& gpu : topology.gpus) text += one_gpu_text(topology, gpu);
  text += "\nlinks between GPUs\n" + link_matrix(topology);
  if (!topology.no_links.empty()) text += fmt::format("  NVLinks and PCIe ways are not known: {}\n", topology.no_links);
  if (topology.pairs.empty()) return text;
  return text + fmt::format("  peer access {}, native atomics {}\n", pairs_with(topology, &GpuPair::peer_access),
                            pairs_with(topology, &GpuPair::native_atomics));
}

json gpu_json(const Topology& topology) {
  const auto version_or_null = [](int version) { return version > 0 ? json(version_text(version)) : json(nullptr); };
  json gpus = json::array();
  for (const Gpu& gpu : topology.gpus) gpus.push_back(one_gpu_json(gpu));
  json pairs = json::array();
  for (const GpuPair& p : topology.pairs) {
    pairs.push_back({{"from", p.from},
                     {"to", p.to},
                     {"link", p.link()},
                     {"nvlinks", p.nvlinks},
                     {"peer_access", p.peer_access},
                     {"native_atomics", p.native_atomics},
                     {"performance_rank", p.performance_rank}});
  }
  return {{"driver", version_or_null(topology.cuda_driver)},
          {"driver_release", topology.driver_release},
          {"runtime", version_or_null(topology.cuda_runtime)},
          {"no_gpus", topology.no_gpus},
          {"no_links", topology.no_links},
          {"gpus", gpus},
          {"pairs", pairs}};
}

std::string why_unusable(const tandem_transport& transport, const Topology& topology) {
  if (std::string reason = detail::why_unavailable(transport); !reason.empty()) return reason;
  if ((transport.capabilities & TANDEM_CAP_DEVICE_MEMORY) == 0) return "";
  if (topology.gpus.empty()) return topology.no_gpus;
  if ((transport.capabilities & TANDEM_CAP_ONE_SIDED) == 0) return "";
  for (const Gpu& gpu : topology.gpus) {
    for (const Ability& a : abilities) {
      if (a.of_peer_memory && !(gpu.*a.has)) return fmt::format("gpu {} lacks {}", gpu.ordinal, a.words);
    }
  }
  return "";
}

}  // namespace tandem::cli

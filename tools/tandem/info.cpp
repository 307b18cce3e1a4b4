// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/plugin_host.hpp"
#include "commands.hpp"
#include "device/topology.hpp"
#include "gpu_report.hpp"
#include "libraries.hpp"
#include "process.hpp"
#include "routes_report.hpp"
#include "tandem/device.hpp"
#include "tandem/kernels.hpp"
#include "tandem/version.hpp"
#include "usage.hpp"

namespace tandem::cli {
namespace {

constexpr std::pair<const char*, CudaKernels> cuda_sets[] = {{"cuda.generic", CudaKernels::generic},
                                                             {"cuda.sm90", CudaKernels::sm90}};

using nlohmann::json;

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return "unknown";
#endif
}

json host_json() {
  utsname name{};
  uname(&name);
  const auto memory =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return {{"name", name.nodename},
          {"system", fmt::format("{} {} {}", name.sysname, name.release, name.machine)},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", memory}};
}

json capabilities_json(std::uint32_t bits) {
  constexpr std::array<std::pair<std::uint32_t, const char*>, 6> names{{
      {TANDEM_CAP_STREAM_ORDERED, "stream_ordered"},
      {TANDEM_CAP_ZERO_SM, "zero_sm"},
      {TANDEM_CAP_DEVICE_MEMORY, "device_memory"},
      {TANDEM_CAP_GRAPH_CAPTURE, "graph_capture"},
      {TANDEM_CAP_NEEDS_PROGRESS, "needs_progress"},
      {TANDEM_CAP_ONE_SIDED, "one_sided"},
  }};
  json list = json::array();
  for (const auto& [bit, name] : names) {
    if ((bits & bit) != 0) list.push_back(name);
  }
  return list;
}

json transports_json() {
  json list = json::array();
  for (const tandem_transport* t : detail::static_transports()) {
    json options = json::array();
    std::istringstream help(t->option_help != nullptr ? t->option_help : "");
    for (std::string line; std::getline(help, line);) options.push_back(line);
    list.push_back({{"name", t->name},
                    {"description", t->description},
                    {"capabilities", capabilities_json(t->capabilities)},
                    {"options", options}});
  }
  return list;
}

json interfaces_json() {
  json list = json::array();
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return list;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
    if (family == AF_INET6) address = &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
    if (address == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    inet_ntop(family, address, text, sizeof(text));
    list.push_back({{"name", i->ifa_name}, {"address", text}, {"up", (i->ifa_flags & IFF_UP) != 0}});
  }
  return list;
}

json environment_json() {
  json list = json::array();
  for (const Env::Row& row : Env::table()) {
    list.push_back({{"name", row.name}, {"value", row.value}, {"meaning", row.meaning}});
  }
  return list;
}

json devices_json() {
  json list = json::array({Device::host().describe()});
  for (int i = 0; i < Device::cuda_count(); ++i) list.push_back(Device::cuda(i).describe());
  return list;
}

json libraries_json() {
  json list = json::array();
  for (const FoundLibrary& l : find_libraries()) {
    list.push_back({{"name", l.name}, {"file", l.file}, {"version", l.version}, {"missing", l.missing}});
  }
  return list;
}

json unavailable_json(const detail::Topology& topology) {
  json list = json::array();
  const auto add = [&](const std::string& name, const std::string& reason) {
    list.push_back({{"name", name}, {"reason", reason}});
  };
  if (topology.gpus.empty()) add("cuda device", topology.no_gpus);
  for (const tandem_transport* t : detail::static_transports()) {
    if (const std::string reason = why_unusable(*t, topology); !reason.empty())
      add(fmt::format("{} transport", t->name), reason);
  }
  // What a build may leave out.
  const auto there = detail::static_transports();
  for (const std::string name : {"cuda_p2p", "nccl"}) {
    if (std::none_of(there.begin(), there.end(), [&](const tandem_transport* t) { return name == t->name; }))
      add(name + " transport", "not part of this build");
  }
  for (const auto& [name, which] : cuda_sets) {
    try {
      cuda_kernels(Device::cuda(), {.which = which});
    } catch (const Error& e) {
      add(fmt::format("{} kernels", name), e.what());
    }
  }
  return list;
}

json kernels_json() {
  json list = json::array();
  const auto add = [&](const KernelSet& set) {
    list.push_back({{"name", set.name()}, {"numerics_version", set.numerics_version()}});
  };
  add(*cpu_kernels());
  for (const auto& [name, which] : cuda_sets) {
    try {
      add(*cuda_kernels(Device::cuda(), {.which = which}));
    } catch (const Error&) {
      // Why it is not there is told among the unavailable.
    }
  }
  return list;
}

json routes_json(const std::vector<RouteReport>& routes) {
  json list = json::array();
  for (const RouteReport& r : routes)
    list.push_back({{"from", r.from}, {"to", r.to}, {"transport", r.transport}, {"reason", r.reason}});
  return list;
}

json info_json(const detail::Topology& topology, const std::vector<RouteReport>& routes) {
  return {{"version", version()},
          {"compiler", compiler()},
          {"host", host_json()},
          {"devices", devices_json()},
          {"cuda", gpu_json(topology)},
          {"transports", transports_json()},
          {"kernels", kernels_json()},
          {"interfaces", interfaces_json()},
          {"libraries", libraries_json()},
          {"routes", routes_json(routes)},
          {"unavailable", unavailable_json(topology)},
          {"environment", environment_json()}};
}

std::string joined(const json& list, const char* separator) {
  return fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), separator));
}

std::string info_text(const json& info, const detail::Topology& topology) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto get = [](const json& object, const char* key) { return object[key].get<std::string>(); };
  const json& host = info["host"];
  fmt::format_to(out, "tandem {}, compiled by {}\nhost        {}: {}, {} cores, {}\ndevices     {}\n",
                 get(info, "version"), get(info, "compiler"), get(host, "name"), get(host, "system"),
                 host["cores"].get<unsigned>(), detail::format_bytes(host["memory_bytes"].get<std::uint64_t>()),
                 joined(info["devices"], ", "));
  text += "\ngpus\n" + gpu_text(topology);
  text += "\ntransports\n";
  for (const json& t : info["transports"]) {
    fmt::format_to(out, "  {:<12} {}\n", get(t, "name"), get(t, "description"));
    if (!t["capabilities"].empty())
      fmt::format_to(out, "  {:<12} capabilities: {}\n", "", joined(t["capabilities"], ", "));
    for (const json& option : t["options"]) fmt::format_to(out, "  {:<12} option {}\n", "", option.get<std::string>());
  }
  text += "\nkernel sets\n";
  for (const json& k : info["kernels"]) {
    fmt::format_to(out, "  {:<12} numerics version {}\n", get(k, "name"), k["numerics_version"].get<std::uint32_t>());
  }
  text += "\nnetwork interfaces\n";
  for (const json& i : info["interfaces"]) {
    fmt::format_to(out, "  {:<12} {}{}\n", get(i, "name"), get(i, "address"), i["up"].get<bool>() ? "" : " (down)");
  }
  text += "\nlibraries\n";
  for (const json& l : info["libraries"]) {
    const std::string found = get(l, "version");
    fmt::format_to(out, "  {:<12} {}\n", get(l, "name"), found.empty() ? "not found: " + get(l, "missing") : found);
  }
  if (!info["unavailable"].empty()) text += "\nnot available\n";
  for (const json& m : info["unavailable"]) fmt::format_to(out, "  {:<20} {}\n", get(m, "name"), get(m, "reason"));
  text += "\nenvironment\n";
  for (const json& v : info["environment"]) {
    const std::string value = get(v, "value");
    fmt::format_to(out, "  {:<19} {:<24} {}\n", get(v, "name"), value.empty() ? "(not set)" : value, get(v, "meaning"));
  }
  return text;
}

}  // namespace

int run_info(bool as_json, bool with_routes) {
  const detail::Topology topology = detail::read_topology();
  const std::vector<Device> devices = with_routes ? devices_for_routes() : std::vector<Device>{};
  const std::vector<RouteReport> routes = with_routes ? report_routes(devices) : std::vector<RouteReport>{};
  const json info = info_json(topology, routes);
  std::string text = as_json ? info.dump() + "\n" : info_text(info, topology);
  if (with_routes && !as_json) text += routes_text(routes, devices);
  print_result(text);
  return exit_ok;
}

}  // namespace tandem::cli

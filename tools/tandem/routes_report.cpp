// SPDX-License-Identifier: Apache-2.0
#include "routes_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <thread>

#include "tandem/communicator.hpp"

namespace tandem::cli {

std::vector<Device> devices_for_routes() {
  std::vector<Device> devices;
  for (int i = 0; i < Device::cuda_count(); ++i) devices.push_back(Device::cuda(i));
  if (devices.size() < 2) devices = {Device::host(), Device::host()};
  return devices;
}

std::vector<RouteReport> report_routes(const std::vector<Device>& devices) {
  const auto ranks = static_cast<int>(devices.size());
  const std::shared_ptr<HashStore> hub = HashStore::create(ranks);
  std::vector<std::vector<RouteReport>> of_rank(devices.size());
  std::vector<std::exception_ptr> thrown(devices.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      try {
        CommunicatorOptions options;
        options.rank = rank;
        options.size = ranks;
        options.device = devices[r];
        options.store = hub->attach(rank);
        Communicator comm = Communicator::create(options);
        for (int peer = rank + 1; peer < ranks; ++peer) {
          const std::string route = comm.route(peer);
          const std::size_t colon = route.find(':');
          of_rank[r].push_back({rank, peer, route.substr(0, colon), route.substr(std::min(colon + 2, route.size()))});
        }
        comm.finalize(Deadline::after(std::chrono::seconds(10)));
      } catch (...) {
        thrown[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& e : thrown) {
    if (e) std::rethrow_exception(e);
  }
  std::vector<RouteReport> routes;
  for (const auto& list : of_rank) routes.insert(routes.end(), list.begin(), list.end());
  return routes;
}

std::string routes_text(const std::vector<RouteReport>& routes, const std::vector<Device>& devices) {
  std::string text = "\nroutes\n";
  const auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < devices.size(); ++i) fmt::format_to(out, "  rank {:<3} {}\n", i, devices[i].describe());
  std::map<std::string, std::string> pairs_of;  // by transport and reason
  for (const RouteReport& r : routes) {
    std::string& pairs = pairs_of[fmt::format("{}: {}", r.transport, r.reason)];
    pairs += fmt::format("{}{}-{}", pairs.empty() ? "" : ", ", r.from, r.to);
  }
  for (const auto& [route, pairs] : pairs_of) fmt::format_to(out, "  {:<8} {}\n", pairs, route);
  return text;
}

}  // namespace tandem::cli

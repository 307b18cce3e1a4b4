// SPDX-License-Identifier: Apache-2.0
#include "support/cluster.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "support/grouped_transport.hpp"
#include "support/stream_transport.hpp"

namespace tandem::testing {

std::vector<std::exception_ptr> run_ranks(const ClusterOptions& o, const std::function<void(Communicator&)>& body) {
  register_stream_transport();
  register_grouped_transport();
  const auto store = HashStore::create(o.ranks);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(o.ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < o.ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        CommunicatorOptions options;
        options.rank = r;
        options.size = o.ranks;
        HostDeviceOptions device;
        device.queues = o.queues;
        device.poison = o.poison;
        options.device = Device::host(device);
        options.store = store->attach(r);
        options.transport = o.transport;
        options.transport_options = o.transport_options;
        if (o.options_of_rank) options.transport_options.merge(o.options_of_rank(r));
        options.operation_timeout = o.operation_timeout;
        options.rendezvous_timeout = o.rendezvous_timeout;
        if (o.trace) options.trace = std::make_shared<Trace>(r);
        Communicator comm = Communicator::create(options);
        body(comm);
        if (o.finalize) comm.finalize(soon());
      } catch (...) {
        thrown[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& violation : take_stream_violations()) ADD_FAILURE() << violation;
  return thrown;
}

void run_cluster(const ClusterOptions& options, const std::function<void(Communicator&)>& body) {
  const auto thrown = run_ranks(options, body);
  for (std::size_t r = 0; r < thrown.size(); ++r) {
    if (!thrown[r]) continue;
    try {
      std::rethrow_exception(thrown[r]);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << r << " threw: " << e.what();
    }
  }
}

std::string path_of(const std::string& transport) {
  const std::string prefix = "staged:";
  if (!transport.starts_with(prefix)) return transport;
  return transport.substr(prefix.size()) + ", staged through host memory";
}

std::string test_name_of(const std::string& transport) {
  std::string name = transport;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
}

Error error_of(const std::exception_ptr& e) {
  if (!e) {
    ADD_FAILURE() << "nothing was thrown";
    return Error(ErrorCode::ok, "");
  }
  try {
    std::rethrow_exception(e);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "not a tandem::Error: " << other.what();
  }
  return Error(ErrorCode::ok, "");
}

}  // namespace tandem::testing

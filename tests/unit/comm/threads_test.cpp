// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>

#include "support/cluster.hpp"
#include "support/thread_signals.hpp"

namespace tandem {
namespace {

// A launcher that reads SIGCHLD from a signalfd, or a trainer that waits for SIGTERM, must not lose it to our threads.
TEST(ThreadsOfTheLibrary, LeaveTheSignalsOfTheProcessAlone) {
  for (const char* transport : {"loopback", "tcp", "staged:tcp"}) {
    testing::ClusterOptions options;
    options.transport = transport;
    testing::run_cluster(options, [&](Communicator& comm) {
      const Stream stream = comm.device().create_stream();
      stream.synchronize(testing::soon());
      comm.barrier(testing::soon());
      int seen = 0;
      for (const testing::ThreadSignals& thread : testing::threads_here()) {
        if (!thread.name.starts_with("tandem")) continue;
        ++seen;
        for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1}) {
          EXPECT_TRUE(thread.blocks(signal)) << thread.name << " over " << transport << " takes signal " << signal;
        }
        EXPECT_FALSE(thread.blocks(SIGSEGV)) << thread.name;
      }
      EXPECT_GT(seen, 0) << transport;
      comm.barrier(testing::soon());
    });
  }
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support/cluster.hpp"

namespace tandem {
namespace {

using testing::ClusterOptions;
using testing::run_cluster;
using testing::soon;
using Direction = Transfer::Direction;

class Exchange : public ::testing::TestWithParam<const char*> {
 protected:
  ClusterOptions cluster(int ranks) const {
    ClusterOptions o;
    o.ranks = ranks;
    o.transport = GetParam();
    return o;
  }
};

std::vector<std::uint8_t> pattern(int from, int to, std::size_t bytes) {
  std::vector<std::uint8_t> v(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    v[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(from * 31 + to * 101));
  return v;
}

TEST_P(Exchange, EverybodySendsToEverybodyItselfIncluded) {
  constexpr int ranks = 3;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{300000}}) {
    run_cluster(cluster(ranks), [&](Communicator& comm) {
      const Stream stream = comm.device().create_stream();
      std::vector<std::vector<std::uint8_t>> out, in;
      std::vector<Transfer> transfers;
      for (int p = 0; p < ranks; ++p) {
        out.push_back(pattern(comm.rank(), p, bytes));
        in.emplace_back(bytes, std::uint8_t{0xEE});
      }
      for (int p = 0; p < ranks; ++p) {
        transfers.push_back({Direction::send, p, out[static_cast<std::size_t>(p)].data(), bytes});
        transfers.push_back({Direction::receive, p, in[static_cast<std::size_t>(p)].data(), bytes});
      }
      const Work work = comm.exchange(transfers, stream);
      work.wait(stream);
      work.synchronize(soon());
      for (int p = 0; p < ranks; ++p) EXPECT_EQ(in[static_cast<std::size_t>(p)], pattern(p, comm.rank(), bytes));
      EXPECT_EQ(work.received_bytes(), bytes * (ranks - 1));
    });
  }
}

TEST_P(Exchange, SeveralTransfersToAPeerMatchInOrder) {
  run_cluster(cluster(2), [&](Communicator& comm) {
    const Stream stream = comm.device().create_stream();
    const int peer = 1 - comm.rank();
    std::vector<int> out(50), in(50, -1);
    std::iota(out.begin(), out.end(), comm.rank() * 1000);
    std::vector<Transfer> transfers;
    for (std::size_t i = 0; i < out.size(); ++i) {
      transfers.push_back({Direction::send, peer, &out[i], sizeof(int)});
      transfers.push_back({Direction::receive, peer, &in[i], sizeof(int)});
    }
    comm.exchange(transfers, stream).synchronize(soon());
    for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(in[i], peer * 1000 + static_cast<int>(i));
  });
}

TEST_P(Exchange, APairOfDifferentSizesFailsOnBothSides) {
  if (GetParam() == std::string("grouped")) return;  // nobody sees it there: see Communicator::exchange
  ClusterOptions options = cluster(2);
  options.finalize = false;
  const auto thrown = testing::run_ranks(options, [&](Communicator& comm) {
    const Stream stream = comm.device().create_stream();
    std::vector<std::uint8_t> data(100);
    const std::uint64_t bytes = comm.rank() == 0 ? 100 : 60;
    const Transfer t{comm.rank() == 0 ? Direction::send : Direction::receive, 1 - comm.rank(), data.data(), bytes};
    comm.exchange({&t, 1}, stream).synchronize(soon());
  });
  for (const auto& e : thrown) {
    const Error error = testing::error_of(e);
    EXPECT_TRUE(error.code() == ErrorCode::invalid_usage || error.code() == ErrorCode::aborted) << error.what();
    EXPECT_NE(std::string(error.what()).find("60"), std::string::npos) << error.what();
  }
}

TEST_P(Exchange, RejectsBadTransfersAtOnce) {
  run_cluster(cluster(2), [&](Communicator& comm) {
    const Stream stream = comm.device().create_stream();
    int word = 0;
    auto code = [&](const std::vector<Transfer>& t) {
      try {
        comm.exchange(t, stream);
      } catch (const Error& e) {
        return e.code();
      }
      return ErrorCode::ok;
    };
    EXPECT_EQ(code({{Direction::send, 2, &word, 4}}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({{Direction::send, -1, &word, 4}}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({{Direction::receive, 1 - comm.rank(), nullptr, 4}}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({{Direction::send, comm.rank(), &word, 4}}), ErrorCode::invalid_argument) << "no matching receive";
    EXPECT_EQ(code({{Direction::send, comm.rank(), &word, 4}, {Direction::receive, comm.rank(), &word, 3}}),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code({}), ErrorCode::ok);
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Exchange, ::testing::Values("loopback", "tcp", "grouped"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem

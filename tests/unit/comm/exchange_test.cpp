// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "comm/bundle.hpp"
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

// Of staged ones: several pieces, and what ends right where a piece does.
TEST_P(Exchange, LargeTransfersArriveWhole) {
  constexpr std::size_t piece = detail::Bundle::piece_bytes;
  run_cluster(cluster(2), [](Communicator& comm) {
    const Stream stream = comm.device().create_stream();
    const int peer = 1 - comm.rank();
    const std::size_t sizes[] = {2 * piece, 3 * piece + 17, piece - 1};
    std::vector<std::vector<std::uint8_t>> out, in;
    for (const std::size_t bytes : sizes) {
      out.push_back(pattern(comm.rank(), peer, bytes));
      in.emplace_back(bytes, std::uint8_t{0xEE});
    }
    std::vector<Transfer> transfers;
    for (std::size_t i = 0; i < out.size(); ++i) {
      transfers.push_back({Direction::send, peer, out[i].data(), out[i].size()});
      transfers.push_back({Direction::receive, peer, in[i].data(), in[i].size()});
    }
    // Larger ones later, in the same memory: it has to grow.
    for (std::size_t count = 2; count <= transfers.size(); count += 2) {
      const Work work = comm.exchange(std::span(transfers).first(count), stream);
      work.wait(stream);
      comm.exchange({}, stream);  // lanes alternate
    }
    stream.synchronize(soon());
    for (std::size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(in[i] == pattern(peer, comm.rank(), sizes[i])) << i;
  });
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

// Neither has a piece of an unusual size where the smaller one ends.
TEST_P(Exchange, LargePairsOfDifferentSizesFailToo) {
  if (GetParam() == std::string("grouped")) return;  // as above
  ClusterOptions options = cluster(2);
  options.finalize = false;
  const auto thrown = testing::run_ranks(options, [&](Communicator& comm) {
    constexpr std::size_t piece = detail::Bundle::piece_bytes;
    const Stream stream = comm.device().create_stream();
    std::vector<std::uint8_t> data(2 * piece);
    const std::uint64_t bytes = comm.rank() == 0 ? piece : 2 * piece;
    const Transfer t{comm.rank() == 0 ? Direction::send : Direction::receive, 1 - comm.rank(), data.data(), bytes};
    const Work work = comm.exchange({&t, 1}, stream);
    try {
      work.synchronize(soon());
    } catch (const Error&) {
      stream.synchronize(soon());
      throw;
    }
  });
  bool told = false;
  for (const auto& e : thrown) {
    const Error error = testing::error_of(e);
    told = told || error.code() == ErrorCode::invalid_usage;
    EXPECT_TRUE(error.code() == ErrorCode::invalid_usage || error.code() == ErrorCode::aborted) << error.what();
  }
  EXPECT_TRUE(told);
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

INSTANTIATE_TEST_SUITE_P(Staged, Exchange, ::testing::Values("staged:loopback", "staged:tcp"),
                         [](const auto& info) { return testing::test_name_of(info.param); });

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
// One rank of an all-to-all exchange over the tcp transport, timed: tcp_vs_mpi.py starts several and compares.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tandem/plugin/transport.h"

extern "C" const tandem_transport* tandem_transport_query_v0_tcp(void);

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds patience{60};

struct Arguments {
  int rank = 0;
  int size = 0;
  std::filesystem::path meeting_point;  // a directory that all ranks share, empty at first
  int repeats = 0;
  std::vector<std::size_t> bytes;
  std::map<std::string, std::string> options;
};

Arguments parse(int argc, char** argv) {
  if (argc < 6)
    throw std::invalid_argument("usage: exchange_bench RANK SIZE DIRECTORY REPEATS BYTES[,BYTES...] [KEY=VALUE...]");
  Arguments a;
  a.rank = std::stoi(argv[1]);
  a.size = std::stoi(argv[2]);
  a.meeting_point = argv[3];
  a.repeats = std::stoi(argv[4]);
  std::string list = argv[5];
  for (std::size_t at = 0; at < list.size();) {
    std::size_t read = 0;
    a.bytes.push_back(std::stoull(list.substr(at), &read));
    at += read + 1;
  }
  for (int i = 6; i < argc; ++i) {
    const std::string option = argv[i];
    const auto equals = option.find('=');
    if (equals == std::string::npos) throw std::invalid_argument("not KEY=VALUE: " + option);
    a.options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  return a;
}

void wait_for(const std::string& what, const std::function<bool()>& done) {
  const auto deadline = Clock::now() + patience;
  while (!done()) {
    if (Clock::now() > deadline) throw std::runtime_error("gave up waiting for " + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class Rank {
 public:
  explicit Rank(const Arguments& a) : rank_(a.rank), size_(a.size), transport_(*tandem_transport_query_v0_tcp()) {
    services_ = {sizeof(services_), nullptr,
                 [](void*, int32_t level, const char* m) {
                   if (level <= TANDEM_LOG_WARN) fmt::print(stderr, "{}\n", m);
                 },
                 [](void*, int32_t, const char* reason) { fmt::print(stderr, "{}\n", reason); }};
    std::vector<tandem_option> options;
    for (const auto& [key, value] : a.options) options.push_back({key.c_str(), value.c_str()});
    const tandem_open_params params{sizeof(params), rank_,          size_, {'b', 'e', 'n', 'c', 'h'},
                                    options.data(), options.size(), -1};
    if (transport_.open(&services_, &params, &context_) != TANDEM_OK) throw std::runtime_error("open failed");
    connect(a.meeting_point);
  }
  ~Rank() { transport_.close(context_); }
  Rank(const Rank&) = delete;

  /// Sends [rank] of `blocks` to everybody and receives the other blocks.
  void exchange(std::vector<char>& blocks, std::size_t bytes) {
    std::vector<tandem_transfer> transfers;
    char* const data = blocks.data();
    for (int t = 1; t < size_; ++t) {
      const int from = (rank_ + size_ - t) % size_;
      transfers.push_back({sizeof(tandem_transfer), from, TANDEM_RECEIVE, data + static_cast<std::size_t>(from) * bytes,
                           bytes, 1, 0, 0, 0, 0});
    }
    for (int t = 1; t < size_; ++t)
      transfers.push_back({sizeof(tandem_transfer), (rank_ + t) % size_, TANDEM_SEND,
                           data + static_cast<std::size_t>(rank_) * bytes, bytes, 1, 0, 0, 0, 0});
    pending_ = transfers.size();
    const tandem_post_params post{
        sizeof(post), transfers.data(), transfers.size(), nullptr, &Rank::completed, this, 0, 0, 0, 0};
    if (transport_.post(context_, &post) != TANDEM_OK) throw std::runtime_error("post failed");
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience, [&] { return pending_ == 0; })) throw std::runtime_error("exchange hangs");
    if (!error_.empty()) throw std::runtime_error(error_);
  }
  void barrier() {
    std::vector<char> nothing;
    exchange(nothing, 0);
  }

 private:
  void connect(const std::filesystem::path& meeting_point) {
    std::vector<char> own(4096);
    std::uint64_t bytes = own.size();
    transport_.address(context_, own.data(), &bytes);
    const auto draft = meeting_point / fmt::format("draft.{}", rank_);
    std::ofstream(draft, std::ios::binary).write(own.data(), static_cast<std::streamsize>(bytes));
    std::filesystem::rename(draft, meeting_point / fmt::format("address.{}", rank_));
    std::vector<std::string> blobs;
    std::vector<const void*> addresses;
    std::vector<std::uint64_t> sizes;
    for (int p = 0; p < size_; ++p) {
      const auto file = meeting_point / fmt::format("address.{}", p);
      wait_for(file, [&] { return std::filesystem::exists(file); });
      std::ifstream in(file, std::ios::binary);
      blobs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    for (const auto& blob : blobs) {
      addresses.push_back(blob.data());
      sizes.push_back(blob.size());
    }
    if (transport_.connect(context_, addresses.data(), sizes.data()) != TANDEM_OK)
      throw std::runtime_error("connect failed");
    for (int p = 0; p < size_; ++p) {
      if (p != rank_) wait_for("a connection", [&] { return transport_.connect_test(context_, p) == TANDEM_OK; });
    }
  }

  static void completed(void* user, std::uint64_t, tandem_status status, const char* message) {
    auto& self = *static_cast<Rank*>(user);
    const std::lock_guard lock(self.mutex_);
    if (status != TANDEM_OK) self.error_ = message;
    if (--self.pending_ == 0) self.changed_.notify_one();
  }

  const int rank_;
  const int size_;
  const tandem_transport& transport_;
  tandem_host_services services_;
  tandem_transport_context* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t pending_ = 0;
  std::string error_;
};

int run(const Arguments& a) {
  Rank rank(a);
  int warmups =
      20;  // a process's first transfers find its threads badly placed and its memory cold; later sizes need two
  for (const std::size_t bytes : a.bytes) {
    std::vector<char> blocks(bytes * static_cast<std::size_t>(a.size), static_cast<char>(a.rank));
    for (int i = -warmups; i < a.repeats; ++i) {
      rank.barrier();
      const auto before = Clock::now();
      rank.exchange(blocks, bytes);
      const std::chrono::duration<double, std::micro> took = Clock::now() - before;
      if (i >= 0) fmt::print("{} {:.1f}\n", bytes, took.count());
    }
    for (int p = 0; p < a.size; ++p) {
      const auto at = static_cast<std::size_t>(p) * bytes;
      if (bytes > 0 && (blocks[at] != p || blocks[at + bytes - 1] != p)) throw std::runtime_error("wrong bytes");
    }
    warmups = 2;
  }
  rank.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& e) {
    fmt::print(stderr, "exchange_bench: {}\n", e.what());
    return 1;
  }
}

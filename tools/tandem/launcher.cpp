// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string_view>

#include "process.hpp"
#include "tandem/error.hpp"
#include "tandem/store.hpp"

extern char** environ;

namespace tandem::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kill_after_term{1000};

// What a rank writes, line by line, with its number in front.
class LineForwarder {
 public:
  LineForwarder(int rank, int source, int target)
      : prefix_(fmt::format("[{}] ", rank)), source_(source), target_(target) {}
  int source() const noexcept { return source_; }
  bool open() const noexcept { return source_ >= 0; }

  /// Reads once; at the end of the stream an unfinished line gets its newline.
  void read_some() {
    char buffer[65536];
    const ssize_t n = ::read(source_, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) return;
    if (n > 0) {
      pending_.append(buffer, static_cast<std::size_t>(n));
    } else {
      if (!pending_.empty()) pending_.push_back('\n');
      source_ = -1;
    }
    std::string lines;
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      lines.append(prefix_).append(pending_, begin, end + 1 - begin);
    }
    pending_.erase(0, begin);
    write_all(target_, lines);
  }

 private:
  std::string prefix_;
  int source_;
  int target_;
  std::string pending_;
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options), token_(random_job_token()) {
    StoreServerOptions server;
    server.address = "127.0.0.1";
    server.token = token_;
    server.size = options.ranks;
    server_ = StoreServer::start(server);
    for (int rank = 0; rank < options.ranks; ++rank) spawn(rank);
  }
  ~Launcher() { server_->stop(); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run() {
    while (true) {
      wait();
      for (int s = signals_.next(); s != 0; s = signals_.next()) on_signal(s);
      reap();
      if (std::all_of(ranks_.begin(), ranks_.end(), [](const Process& p) { return p.ended(); })) break;
      enforce_grace();
    }
    for (LineForwarder& line : lines_) {
      while (line.open()) line.read_some();
    }
    return exit_code_.value_or(0);
  }

 private:
  std::string endpoint() const { return fmt::format("127.0.0.1:{}", server_->port()); }

  void say(std::string_view message) const {
    write_all(STDERR_FILENO, fmt::format("{}: {}\n", options_.name, message));
  }

  void spawn(int rank) {
    SpawnOptions spawn;
    spawn.command = options_.command;
    spawn.environment = environment(rank);
    spawn.capture = options_.prefix;
    spawn.mask = signals_.old_mask();
    ranks_.emplace_back(spawn);
    if (!options_.prefix) return;
    lines_.emplace_back(rank, ranks_.back().output().get(), STDOUT_FILENO);
    lines_.emplace_back(rank, ranks_.back().errors().get(), STDERR_FILENO);
  }

  std::vector<std::string> environment(int rank) const {
    constexpr std::string_view own[] = {"TANDEM_STORE=", "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE="};
    std::vector<std::string> result;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      if (std::none_of(std::begin(own), std::end(own), [&](std::string_view name) { return text.starts_with(name); })) {
        result.emplace_back(text);
      }
    }
    result.push_back(fmt::format("TANDEM_STORE={}/{}", endpoint(), to_hex(token_)));
    result.push_back(fmt::format("RANK={}", rank));
    result.push_back(fmt::format("WORLD_SIZE={}", options_.ranks));
    result.push_back(fmt::format("LOCAL_RANK={}", rank));
    result.push_back(fmt::format("LOCAL_WORLD_SIZE={}", options_.ranks));
    return result;
  }

  // Until a signal, output of a rank, or the end of a grace period.
  void wait() {
    std::vector<pollfd> ready{{signals_.fd(), POLLIN, 0}};
    for (const LineForwarder& line : lines_) ready.push_back({line.source(), POLLIN, 0});  // poll skips negative ones
    int timeout = -1;
    if (next_step_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*next_step_ - Clock::now());
      timeout = static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 3'600'000));
    }
    if (poll(ready.data(), ready.size(), timeout) <= 0) return;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (ready[i + 1].revents != 0) lines_[i].read_some();
    }
  }

  void on_signal(int signal) {
    if (signal == SIGCHLD) return;
    const bool again = stopped_by_ != 0;
    stopped_by_ = signal;
    if (!exit_code_) exit_code_ = 128 + signal;
    for (const Process& rank : ranks_) rank.signal(again ? SIGKILL : signal);
    if (!next_step_) next_step_ = Clock::now() + options_.grace;
  }

  void reap() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Process& rank = ranks_[i];
      if (rank.ended() || !rank.reap() || rank.exit_code() == 0) continue;
      const std::string how = fmt::format("rank {} (process {}) {}", i, rank.pid(), rank.describe_end());
      if (stopped_by_ == 0 || rank.exit_code() != 128 + stopped_by_) say(how);
      if (!exit_code_) exit_code_ = rank.exit_code();
      if (!next_step_) next_step_ = Clock::now() + options_.grace;
      tell_others(static_cast<int>(i), how);
    }
  }

  // The store notices when a rank that joined goes away. One that never came would be waited for: join and leave in its
  // place.
  void tell_others(int rank, const std::string& how) noexcept {
    try {
      const std::vector<int> missing = server_->missing_ranks();
      if (std::find(missing.begin(), missing.end(), rank) == missing.end()) return;
      TcpStoreOptions store;
      store.endpoint = endpoint();
      store.token = token_;
      store.rank = rank;
      store.size = options_.ranks;
      connect_store(store, Deadline::after(std::chrono::seconds(1)))
          ->announce({Store::Notice::Kind::peer_lost, rank, how + " before it joined"});
    } catch (const std::exception&) {
      // Then the others find out at their rendezvous deadline.
    }
  }

  void enforce_grace() {
    if (!next_step_ || Clock::now() < *next_step_) return;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].ended()) continue;
      say(fmt::format("rank {} (process {}) is still there; sending it {}", i, ranks_[i].pid(),
                      term_sent_ ? "SIGKILL" : "SIGTERM"));
      ranks_[i].signal(term_sent_ ? SIGKILL : SIGTERM);
    }
    // There is nothing beyond SIGKILL: a process that the kernel holds goes once it is let go.
    if (term_sent_) {
      next_step_ = Clock::time_point::max();
    } else {
      term_sent_ = true;
      next_step_ = Clock::now() + kill_after_term;
    }
  }

  const LaunchOptions options_;
  SignalQueue signals_;  // before the server's thread, which inherits the mask
  JobToken token_;
  std::shared_ptr<StoreServer> server_;
  std::vector<Process> ranks_;
  std::vector<LineForwarder> lines_;
  std::optional<int> exit_code_;
  int stopped_by_ = 0;
  bool term_sent_ = false;
  std::optional<Clock::time_point> next_step_;  // when patience ends
};

}  // namespace

int launch(const LaunchOptions& options) { return Launcher(options).run(); }

}  // namespace tandem::cli

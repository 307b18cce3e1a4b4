// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"
#include "comm/communicator_impl.hpp"

namespace tandem::detail {

namespace {

using Clock = Deadline::Clock;

// How often deadlines are looked at; an operation's error comes this late at most.
constexpr std::chrono::milliseconds tick{100};
// The same while a stream-ordered operation is open: what has arrived is seen this late at most.
constexpr std::chrono::milliseconds close_tick{1};
// A broken connection waits this long for the store to say whose death it is the echo of.
constexpr std::chrono::milliseconds verdict_time{700};
constexpr std::chrono::seconds first_notice{2};

}  // namespace

void CommunicatorImpl::watch() {
  set_thread_name("tandem-watch");
  std::map<std::int64_t, std::chrono::nanoseconds> next_notice;  // by operation
  std::unique_lock lock(mutex_);
  bool close = false;
  while (!closing_) {
    wake_.wait_for(lock, close ? close_tick : tick,
                   [&] { return closing_ || report_.has_value() || (look_closely_ && !close); });
    if (closing_) return;
    look_closely_ = false;
    std::optional<Report> report;
    if (report_) {
      report = std::exchange(report_, std::nullopt);
    } else if (suspicion_ && (Clock::now() - suspicion_->since >= verdict_time ||
                              left_[static_cast<std::size_t>(suspicion_->peer)])) {
      Status status;
      status.code = ErrorCode::peer_failed;
      status.rank = suspicion_->peer;
      status.message = fmt::format("rank {} was lost: {}", suspicion_->peer, suspicion_->reason);
      report = Report{std::move(status), true};
      suspicion_.reset();
    }
    const std::vector<std::shared_ptr<OpState>> ops = open_ops_;
    lock.unlock();
    if (report) {
      fail(std::move(report->status), report->announce);
    } else {
      watch_ops(ops, next_notice);
    }
    close = std::any_of(ops.begin(), ops.end(), [](const auto& op) { return op->stream_op() && !op->done(); });
    lock.lock();
  }
}

void CommunicatorImpl::watch_ops(const std::vector<std::shared_ptr<OpState>>& ops,
                                 std::map<std::int64_t, std::chrono::nanoseconds>& next_notice) {
  const auto now = Clock::now();
  for (const auto& op : ops) {
    op->poll();
    if (op->timed_out(now)) {
      fail(op->timeout_status(), true);
      return;
    }
    if (!op->started()) {
      next_notice.erase(op->sequence());
      continue;
    }
    auto& due = next_notice.try_emplace(op->sequence(), first_notice).first->second;
    const auto running = op->running_for();
    if (running < due) continue;
    due = std::max(due, running) * 2;
    const std::vector<int> ranks = op->missing_ranks();
    if (!ranks.empty())
      log::warn("{}: waiting for {} ({})", op->describe(), name_ranks(ranks), format_duration(running));
  }
}

void CommunicatorImpl::await_verdict() {
  std::unique_lock lock(mutex_);
  const auto until = Clock::now() + verdict_time + 2 * tick;
  while (status_.ok() && Clock::now() < until) wake_.wait_for(lock, tick);
}

}  // namespace tandem::detail

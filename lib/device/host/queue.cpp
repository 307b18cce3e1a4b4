// SPDX-License-Identifier: Apache-2.0
#include "device/host/queue.hpp"

#include <system_error>
#include <utility>

#include "base/thread.hpp"

namespace tandem::detail {

void QueueCore::push(std::shared_ptr<StreamState> stream, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back({std::move(stream), std::move(task)});
    ++entries_.back().stream->submitted;
    ++total_;
    ++pending_;
  }
  pushed_.notify_one();
}

template <class Done>
void QueueCore::wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const std::string& who, Done done) {
  if (done()) return;
  if (std::this_thread::get_id() == thread_id_) {
    throw Error(ErrorCode::invalid_usage, who + " cannot be synchronized by a task that its pending work waits behind");
  }
  ++waiters_;
  const bool in_time = completed_.wait_until(lock, deadline.time(), done);
  --waiters_;
  if (!in_time) {
    throw Error(ErrorCode::timeout,
                who + " was not done at the deadline: " + std::to_string(pending_) + " tasks pending in its queue");
  }
}

void QueueCore::synchronize(const StreamState& stream, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const std::uint64_t target = stream.submitted;
  wait_until(lock, deadline, "stream '" + stream.name + "'", [&] { return stream.completed >= target; });
}

bool QueueCore::idle(const StreamState& stream) const {
  const std::lock_guard lock(mutex_);
  return stream.completed == stream.submitted;
}

std::uint64_t QueueCore::wait_idle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  wait_until(lock, deadline, "the device", [&] { return pending_ == 0; });
  return total_;
}

void QueueCore::run(const std::string& thread_name) {
  set_thread_name(thread_name);
  std::unique_lock lock(mutex_);
  thread_id_ = std::this_thread::get_id();
  while (true) {
    pushed_.wait(lock, [this] { return closed_ || !entries_.empty(); });
    if (entries_.empty()) return;
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    lock.unlock();
    run_task(entry.task, entry.stream->name, entry.stream->failure, *entry.stream->device_failure);
    // What the task holds goes before it counts as done: then synchronize() means that it is gone, and a stream or
    // device whose last handle it was goes while this queue still counts as busy, so that nobody tries to join this
    // thread.
    entry.task = nullptr;
    lock.lock();
    ++entry.stream->completed;
    --pending_;
    if (waiters_ > 0) completed_.notify_all();
  }
}

bool QueueCore::close() {
  bool idle = false;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    idle = pending_ == 0;
  }
  pushed_.notify_one();
  return idle;
}

void LiveQueues::add(std::shared_ptr<QueueCore> core) {
  const std::lock_guard lock(mutex_);
  cores_.push_back(std::move(core));
}

void LiveQueues::remove(const QueueCore* core) {
  const std::lock_guard lock(mutex_);
  std::erase_if(cores_, [core](const std::shared_ptr<QueueCore>& c) { return c.get() == core; });
}

std::vector<std::shared_ptr<QueueCore>> LiveQueues::all() const {
  const std::lock_guard lock(mutex_);
  return cores_;
}

HostQueue::HostQueue(const std::string& thread_name, std::shared_ptr<LiveQueues> live)
    : core_(std::make_shared<QueueCore>()) {
  live->add(core_);
  try {
    thread_ = start_thread([core = core_, live, thread_name] {
      core->run(thread_name);
      live->remove(core.get());
    });
  } catch (const std::system_error& e) {
    live->remove(core_.get());
    throw Error(ErrorCode::device, "cannot start a thread for stream '" + thread_name + "': " + e.what());
  }
}

HostQueue::~HostQueue() {
  // An idle thread ends at once and can be joined, so that it is gone when this returns. One with work left must not be
  // waited for, and it may be the very thread that runs this.
  if (core_->close()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace tandem::detail

// SPDX-License-Identifier: Apache-2.0
#include "conformance/mesh.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

namespace tandem::conformance {

void Batch::on_complete(void* batch, std::uint64_t index, tandem_status status, const char* message) {
  auto& self = *static_cast<Batch*>(batch);
  const std::lock_guard lock(self.mutex_);
  auto& outcome = self.outcomes_.at(index);
  outcome.status = status;
  outcome.message = message ? message : "";
  self.order_.push_back(index);
  if (outcome.times++ == 0 && ++self.completed_ == self.outcomes_.size()) self.changed_.notify_all();
}

bool Batch::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.time(), [&] { return completed_ == outcomes_.size(); });
}

std::vector<std::uint64_t> Batch::order() const {
  const std::lock_guard lock(mutex_);
  return order_;
}

std::size_t Batch::completed() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

tandem_status Batch::status(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return outcomes_.at(index).status;
}

std::string Batch::message(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return outcomes_.at(index).message;
}

int Batch::times(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return outcomes_.at(index).times;
}

bool Batch::all_once_with(tandem_status status) const {
  const std::lock_guard lock(mutex_);
  return std::all_of(outcomes_.begin(), outcomes_.end(),
                     [&](const Outcome& o) { return o.times == 1 && o.status == status; });
}

Rank::Rank(const tandem_transport& transport, int rank, int size, const std::array<std::uint8_t, 16>& group,
           const Options& options)
    : transport_(transport), size_(size) {
  services_ = {sizeof(services_), this,
               [](void* user, std::int32_t, const char* message) {
                 auto& self = *static_cast<Rank*>(user);
                 const std::lock_guard lock(self.mutex_);
                 self.logs_.emplace_back(message);
               },
               [](void* user, std::int32_t peer, const char* reason) {
                 auto& self = *static_cast<Rank*>(user);
                 const std::lock_guard lock(self.mutex_);
                 self.failures_.emplace(peer, reason);
                 self.changed_.notify_all();
               }};
  std::vector<tandem_option> list;
  for (const auto& [key, value] : options) list.push_back({key.c_str(), value.c_str()});
  tandem_open_params params{sizeof(params), rank, size, {}, list.data(), list.size(), -1};
  std::memcpy(params.group, group.data(), group.size());
  open_status_ = transport.open(&services_, &params, &context_);
}

Rank::~Rank() { close(); }

void Rank::close() {
  if (context_) transport_.close(context_);
  context_ = nullptr;
}

std::vector<char> Rank::address() const {
  std::vector<char> blob(4096);
  std::uint64_t bytes = blob.size();
  EXPECT_EQ(transport_.address(context_, blob.data(), &bytes), TANDEM_OK);
  blob.resize(bytes);
  return blob;
}

void Rank::connect(const std::vector<std::vector<char>>& addresses) {
  std::vector<const void*> pointers;
  std::vector<std::uint64_t> sizes;
  for (const auto& a : addresses) {
    pointers.push_back(a.data());
    sizes.push_back(a.size());
  }
  EXPECT_EQ(transport_.connect(context_, pointers.data(), sizes.data()), TANDEM_OK);
}

Batch& Rank::post(const std::vector<tandem_transfer>& transfers) {
  Batch* batch = nullptr;
  {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::make_unique<Batch>(transfers.size()));
    batch = batches_.back().get();
  }
  const tandem_post_params params{
      sizeof(params), transfers.data(), transfers.size(), nullptr, &Batch::on_complete, batch, 0, 0, 0, 0};
  EXPECT_EQ(transport_.post(context_, &params), TANDEM_OK);
  return *batch;
}

void Rank::post_raw(const tandem_transfer& transfer, tandem_completion_fn on_complete, void* user) {
  const tandem_post_params params{sizeof(params), &transfer, 1, nullptr, on_complete, user, 0, 0, 0, 0};
  EXPECT_EQ(transport_.post(context_, &params), TANDEM_OK);
}

tandem_status Rank::try_post(const std::vector<tandem_transfer>& transfers) {
  Batch never(transfers.size());
  const tandem_post_params params{
      sizeof(params), transfers.data(), transfers.size(), nullptr, &Batch::on_complete, &never, 0, 0, 0, 0};
  const auto status = transport_.post(context_, &params);
  EXPECT_EQ(never.completed(), 0U);
  return status;
}

std::vector<std::string> Rank::logs() const {
  const std::lock_guard lock(mutex_);
  return logs_;
}

std::multimap<int, std::string> Rank::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

bool Rank::wait_failures(std::size_t count, Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.time(), [&] { return failures_.size() >= count; });
}

Mesh::Mesh(const tandem_transport& transport, int size, const Options& options) {
  const auto group = fresh_group();
  std::vector<std::vector<char>> addresses;
  for (int r = 0; r < size; ++r) {
    ranks_.push_back(std::make_unique<Rank>(transport, r, size, group, options));
    EXPECT_EQ(ranks_.back()->open_status(), TANDEM_OK);
    if (ranks_.back()->open_status() != TANDEM_OK) return;
    addresses.push_back(ranks_.back()->address());
  }
  for (auto& rank : ranks_) rank->connect(addresses);
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  for (int r = 0; r < size; ++r) {
    for (int p = 0; p < size; ++p) {
      if (p == r) continue;
      tandem_status status = TANDEM_IN_PROGRESS;
      while ((status = (*this)[r].connect_test(p)) == TANDEM_IN_PROGRESS && !deadline.passed())
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      EXPECT_EQ(status, TANDEM_OK) << "rank " << r << " to " << p;
      if (status != TANDEM_OK) return;
    }
  }
  connected_ = true;
}

Mesh::~Mesh() {
  // All contexts close before any batch goes: a rank's close may complete transfers of the others.
  for (auto& rank : ranks_) rank->close();
}

std::array<std::uint8_t, 16> fresh_group() {
  std::random_device random;
  std::array<std::uint8_t, 16> group;
  for (auto& byte : group) byte = static_cast<std::uint8_t>(random());
  return group;
}

std::vector<char> pattern(int src, int dst, std::uint64_t tag, std::uint64_t index, std::size_t bytes) {
  std::seed_seq seed{static_cast<std::uint64_t>(src), static_cast<std::uint64_t>(dst), tag, tag >> 32, index};
  std::mt19937_64 words(seed);
  std::vector<char> out(bytes);
  for (std::size_t at = 0; at < bytes; at += 8) {
    const auto word = words();
    std::memcpy(out.data() + at, &word, std::min<std::size_t>(8, bytes - at));
  }
  return out;
}

std::vector<char> poisoned(std::size_t bytes) { return std::vector<char>(bytes, '\xA5'); }

namespace {

std::size_t entries(const char* directory) {
  const std::filesystem::directory_iterator begin(directory);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

}  // namespace

std::size_t open_fds() { return entries("/proc/self/fd"); }
std::size_t threads_of_process() { return entries("/proc/self/task"); }

}  // namespace tandem::conformance

// SPDX-License-Identifier: Apache-2.0
#include "comm/meeting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/bytes.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace tandem::detail {

namespace {
constexpr std::chrono::seconds first_notice{2};
// Probing who is missing happens after the deadline; it must not take noticeably longer.
constexpr std::chrono::milliseconds probe_time{300};
}  // namespace

std::string Meeting::arrival_key(const std::string& name, int rank) const {
  return fmt::format("{}/rank{}", name, rank);
}

std::vector<int> Meeting::missing(const std::string& name) {
  std::vector<int> ranks;
  const Deadline deadline = Deadline::after(probe_time);
  try {
    for (int r = 0; r < size_; ++r) {
      if (!store_->try_get(arrival_key(name, r), deadline)) ranks.push_back(r);
    }
  } catch (const Error&) {
    // The store is slow or gone: name those that were found missing so far.
  }
  return ranks;
}

std::string Meeting::get(const std::string& key, const std::string& name, Deadline deadline) {
  const auto begin = Deadline::Clock::now();
  auto interval = std::chrono::duration_cast<Deadline::Clock::duration>(first_notice);
  while (true) {
    try {
      return store_->get(key, Deadline::at(std::min(deadline.time(), Deadline::Clock::now() + interval)));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::timeout) throw;
    }
    const std::vector<int> ranks = missing(name);
    const auto waited = Deadline::Clock::now() - begin;
    if (deadline.passed()) {
      const std::string who = ranks.empty() ? "rank 0" : name_ranks(ranks);
      throw Error(ErrorCode::timeout, fmt::format("{}: {} did not come within {}", name, who, format_duration(waited)),
                  ranks.empty() ? 0 : ranks.front());
    }
    if (!ranks.empty()) log::warn("{}: waiting for {} ({})", name, name_ranks(ranks), format_duration(waited));
    interval *= 2;
  }
}

void Meeting::retire(std::vector<std::string> keys) {
  for (const std::string& key : last_keys_) store_->erase(key, Deadline::after(std::chrono::seconds(5)));
  last_keys_ = std::move(keys);
}

std::vector<std::string> Meeting::collect(const std::string& name, const std::string& mine, Deadline deadline) {
  store_->set(arrival_key(name, rank_), mine, deadline);
  std::vector<std::string> all(static_cast<std::size_t>(size_));
  const std::string all_key = name + "/all";
  if (rank_ == 0) {
    ByteWriter writer;
    for (int r = 0; r < size_; ++r) {
      all[static_cast<std::size_t>(r)] = get(arrival_key(name, r), name, deadline);
      writer.string(all[static_cast<std::size_t>(r)]);
    }
    store_->set(all_key, writer.bytes(), deadline);
  } else {
    const std::string bytes = get(all_key, name, deadline);
    ByteReader reader(bytes);
    for (std::string& blob : all) blob = reader.string();
  }
  retire(rank_ == 0 ? std::vector{arrival_key(name, 0), all_key} : std::vector{arrival_key(name, rank_)});
  return all;
}

std::string Meeting::broadcast(const std::string& name, const std::string& mine, Deadline deadline) {
  return collect(name, rank_ == 0 ? mine : std::string(), deadline).front();
}

std::string Meeting::hear_rank_0(const std::string& name, const std::string& mine, Deadline deadline) {
  const std::string my_key = arrival_key(name, rank_);
  store_->set(my_key, mine, deadline);
  std::string said = rank_ == 0 ? mine : get(arrival_key(name, 0), name, deadline);
  last_keys_.push_back(my_key);  // others may still read this one and the last meeting's
  return said;
}

void Meeting::barrier(const std::string& name, Deadline deadline) { collect(name, {}, deadline); }

}  // namespace tandem::detail

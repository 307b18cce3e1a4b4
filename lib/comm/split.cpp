// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.hpp"
#include "comm/communicator_impl.hpp"

namespace tandem::detail {

std::shared_ptr<CommunicatorImpl> CommunicatorImpl::split(int color, int key) {
  check_usable();
  const std::string name = fmt::format("split {}", next_meeting_++);
  std::vector<std::string> all;
  ByteWriter mine;
  mine.i32(color);
  mine.i32(key);
  if (size() == 1) {
    all.push_back(mine.take());
  } else {
    all = meet([&] { return meeting_->collect(name, mine.bytes(), Deadline::after(options_.rendezvous_timeout)); });
  }
  std::vector<std::pair<int, int>> members;  // key, rank here: sorted, it is the order of the new group
  for (int r = 0; r < size(); ++r) {
    ByteReader reader(all[static_cast<std::size_t>(r)]);
    if (reader.i32() == color) members.emplace_back(reader.i32(), r);
  }
  if (color < 0) return nullptr;
  std::sort(members.begin(), members.end());

  Group group;
  group.name = fmt::format("{}{}/{}/", group_.name, name, color);
  CommunicatorOptions options = options_;
  for (const auto& [k, r] : members) {
    if (r == rank()) group.rank = static_cast<int>(group.job_ranks.size());
    group.job_ranks.push_back(group_.job_ranks[static_cast<std::size_t>(r)]);
  }
  options.rank = group.rank;
  options.size = group.size();
  auto child = std::make_shared<CommunicatorImpl>(std::move(options), std::move(group), job_store_, route_reason_);
  child->join();
  return child;
}

}  // namespace tandem::detail

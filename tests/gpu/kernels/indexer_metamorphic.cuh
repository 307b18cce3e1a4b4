// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_checks.cuh"

/// What must not matter to the indexer: the order of keys, how they are cut into ranges and steps, where tiles begin,
/// which place of a tile a row has. Compared are the carried scores, bit for bit, and the rows that they belong to.
namespace tandem::test {

/// A row's best K with their score bits, in the total order.
struct Ranked {
  std::uint32_t score;
  std::int32_t key;
  bool operator==(const Ranked&) const = default;
};
using RankedRows = std::vector<std::vector<Ranked>>;

/// Key ranges of each step of a run.
using StepRanges = std::vector<std::vector<std::int32_t>>;

/// Runs the steps and returns what the last of them carries.
inline RankedRows ranked_rows(const Inputs& in, const Bounds& bounds, int topk, const StepRanges& steps) {
  IndexerArgs args;
  in.attach(args);
  args.topk = topk;
  args.row_count = static_cast<std::int32_t>(in.queries);
  DeviceArray<std::int32_t> begin(bounds.begin), end(bounds.end);
  args.key_begin = begin.data();
  args.key_end = end.data();
  const auto rows = static_cast<std::size_t>(in.queries), k = static_cast<std::size_t>(topk);
  DeviceArray<float> scores(rows * k);
  DeviceArray<std::int32_t> indices(rows * k), length(rows);
  DeviceArray<std::int64_t> nans(1);
  nans.set({0});
  args.nan_count = nans.data();
  args.state_scores = scores.data();
  args.state_indices = indices.data();
  args.state_length = length.data();
  DeviceArray<std::uint8_t> scratch(detail::sm90::indexer_scratch_bytes(args));
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  args.last = false;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    DeviceArray<std::int32_t> ranges(steps[step]);
    args.key_ranges = ranges.data();
    args.key_range_count = static_cast<std::int32_t>(steps[step].size() / 2);
    args.first = step == 0;
    CUDA_OK(detail::sm90::launch_indexer(args, nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }
  const auto all_scores = scores.get();
  const auto all_indices = indices.get(), lengths = length.get();
  RankedRows out(rows);
  parallel(rows, [&](std::size_t t) {
    for (std::size_t i = t * k; i < t * k + static_cast<std::size_t>(lengths[t]); ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &all_scores[i], 4);
      out[t].push_back({bits, all_indices[i]});
    }
    std::sort(out[t].begin(), out[t].end(), [](const Ranked& a, const Ranked& b) {
      float x, y;
      std::memcpy(&x, &a.score, 4);
      std::memcpy(&y, &b.score, 4);
      return x > y || (x == y && a.key < b.key);
    });
  });
  return out;
}

inline Bounds whole_bounds(std::int64_t queries, std::int64_t begin, std::int64_t end) {
  Bounds bounds;
  bounds.begin.assign(static_cast<std::size_t>(queries), static_cast<std::int32_t>(begin));
  bounds.end.assign(static_cast<std::size_t>(queries), static_cast<std::int32_t>(end));
  return bounds;
}

/// All keys in pieces of `size`, dealt to `steps` steps.
inline StepRanges pieces(std::int64_t keys, std::int64_t size, int steps, std::uint64_t seed) {
  StepRanges out(static_cast<std::size_t>(steps));
  for (std::int64_t at = 0; at < keys; at += size) {
    auto& step = out[steps == 1 ? 0 : mix(seed, static_cast<std::uint64_t>(at)) % static_cast<std::uint64_t>(steps)];
    step.push_back(static_cast<std::int32_t>(at));
    step.push_back(static_cast<std::int32_t>(std::min(keys, at + size)));
  }
  return out;
}

/// Makes `out` what `in` is, with key j at place `place(j)`; other places have junk.
template <typename Place>
void move_keys(const Inputs& in, Inputs& out, Place place) {
  out.fill(Pattern::equal, 1);
  const std::size_t row = 128 * in.width();
  const auto k = in.k.get();
  const auto scale = in.k_scale.get();
  auto new_k = out.k.get();
  auto new_scale = out.k_scale.get();
  for (std::int64_t j = 0; j < in.keys; ++j) {
    const auto to = static_cast<std::size_t>(place(j));
    std::memcpy(new_k.data() + to * row, k.data() + static_cast<std::size_t>(j) * row, row);
    new_scale[to] = scale[static_cast<std::size_t>(j)];
  }
  out.k.set(new_k);
  out.k_scale.set(new_scale);
  out.q.set(in.q.get());
  out.w.set(in.w.get());
}

inline void report_same(bool same, const Inputs& in, const std::string& what) {
  report(same, what + (in.dtype == IndexerDtype::bf16 ? " bf16" : " e4m3") + " Hi " + std::to_string(in.heads));
}

inline void check_metamorphic(IndexerDtype dtype, int heads) {
  const std::int64_t queries = 3 * 256 / heads + 1, keys = 7013;
  const int topk = 512;
  Inputs in(dtype, queries, keys, heads);
  in.fill(Pattern::random, base_seed + 21);
  const Bounds whole = whole_bounds(queries, 0, keys);
  const RankedRows base = ranked_rows(in, whole, topk, pieces(keys, keys, 1, 0));
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{63}, std::int64_t{64}, std::int64_t{65}, keys}) {
    for (const int steps : {1, 3}) {
      const RankedRows again = ranked_rows(in, whole, topk, pieces(keys, size, steps, base_seed));
      report_same(again == base, in, "ranges of " + std::to_string(size) + ", " + std::to_string(steps) + " steps,");
    }
  }
  // Every order of four arriving chunks.
  int order[] = {0, 1, 2, 3};
  const std::int64_t cut[] = {0, keys / 5, keys / 2, keys * 3 / 4 + 1, keys};
  bool same = true;
  do {
    StepRanges steps;
    for (const int chunk : order) {
      steps.push_back({static_cast<std::int32_t>(cut[chunk]), static_cast<std::int32_t>(cut[chunk + 1])});
    }
    same = same && ranked_rows(in, whole, topk, steps) == base;
  } while (std::next_permutation(order, order + 4));
  report_same(same, in, "orders of four chunks,");
  for (const int shift : {1, 7, 31, 63}) {
    Inputs shifted(dtype, queries, keys + shift, heads);
    move_keys(in, shifted, [&](std::int64_t j) { return j + shift; });
    RankedRows again = ranked_rows(shifted, whole_bounds(queries, shift, keys + shift), topk,
                                   pieces(keys + shift, keys + shift, 1, 0));
    for (auto& row : again) {
      for (Ranked& entry : row) entry.key -= shift;
    }
    report_same(again == base, in, "tiles shifted by " + std::to_string(shift) + ",");
  }
  // Scores equal to the K-th may come from other keys after a permutation.
  std::vector<std::int32_t> place(static_cast<std::size_t>(keys));
  std::iota(place.begin(), place.end(), 0);
  for (std::size_t i = place.size() - 1; i > 0; --i) std::swap(place[i], place[mix(base_seed, i) % (i + 1)]);
  Inputs permuted(dtype, queries, keys, heads);
  move_keys(in, permuted, [&](std::int64_t j) { return place[static_cast<std::size_t>(j)]; });
  const RankedRows again = ranked_rows(permuted, whole, topk, pieces(keys, keys, 1, 0));
  same = true;
  for (std::size_t t = 0; t < base.size(); ++t) {
    std::vector<std::pair<std::uint32_t, std::int32_t>> a, b;
    for (const Ranked& e : base[t]) a.emplace_back(e.score, place[static_cast<std::size_t>(e.key)]);
    for (const Ranked& e : again[t]) b.emplace_back(e.score, e.key);
    const std::uint32_t last = base[t].back().score;
    for (auto* list : {&a, &b}) {
      for (auto& [score, key] : *list) key = score == last ? 0 : key;
      std::sort(list->begin(), list->end());
    }
    same = same && a == b;
  }
  report_same(same, in, "permuted keys,");
}

/// One query and one key at every place of the tiles: all scores have the same bits, and the first keys win.
inline void check_same_everywhere(IndexerDtype dtype, int heads) {
  const std::int64_t queries = 2 * 256 / heads, keys = 1003;
  Inputs in(dtype, queries, keys, heads);
  in.fill(Pattern::random, base_seed + 31);
  const std::size_t key_row = 128 * in.width(), query_row = key_row * static_cast<std::size_t>(heads);
  auto q = in.q.get(), k = in.k.get();
  auto w = in.w.get(), scale = in.k_scale.get();
  for (std::size_t t = 1; t < static_cast<std::size_t>(queries); ++t) {
    std::memcpy(q.data() + t * query_row, q.data(), query_row);
    std::copy_n(w.begin(), heads, w.begin() + static_cast<std::ptrdiff_t>(t) * heads);
  }
  for (std::size_t j = 1; j < static_cast<std::size_t>(keys); ++j) {
    std::memcpy(k.data() + j * key_row, k.data(), key_row);
    scale[j] = scale[0];
  }
  in.q.set(q);
  in.k.set(k);
  in.w.set(w);
  in.k_scale.set(scale);
  const RankedRows rows = ranked_rows(in, whole_bounds(queries, 0, keys), 128, pieces(keys, keys, 1, 0));
  bool same = true;
  for (const auto& row : rows) {
    same = same && row.size() == 128;
    for (std::size_t i = 0; i < row.size(); ++i) {
      same = same && row[i] == Ranked{rows[0][0].score, static_cast<std::int32_t>(i)};
    }
  }
  report_same(same, in, "one query and one key everywhere,");
}

}  // namespace tandem::test

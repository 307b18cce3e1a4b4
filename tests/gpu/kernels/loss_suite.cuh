// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "loss_checks.cuh"

/// All cases of the indexer loss' checks.
namespace tandem::test {

/// What the launcher does without touching memory.
inline void check_loss_arguments() {
  const auto refused = [](const std::string& what, auto change) {
    IndexerLossArgs args;
    args.heads = args.topk = 64;
    args.row_end = 1;
    change(args);
    const bool good = detail::sm90::launch_indexer_loss(args, nullptr) == cudaErrorInvalidValue;
    backward_report(good, what, good ? "" : "was not refused");
  };
  const float scale = 1;
  refused("24 heads", [](IndexerLossArgs& args) { args.heads = 24; });
  refused("K of 100", [](IndexerLossArgs& args) { args.topk = 100; });
  refused("K of 8256", [](IndexerLossArgs& args) { args.topk = 8256; });
  refused("rows from behind their end", [](IndexerLossArgs& args) { args.row_begin = 2; });
  refused("e4m3 without scales", [](IndexerLossArgs& args) { args.e4m3 = true; });
  refused("bf16 with scales", [&](IndexerLossArgs& args) { args.k_scale = &scale; });
  IndexerLossArgs nothing;
  nothing.heads = nothing.topk = 64;
  backward_report(detail::sm90::launch_indexer_loss(nothing, nullptr) == cudaSuccess, "no rows");
}

/// Case `number` of a type and number of heads; there are loss_case_count.
constexpr int loss_case_count = 10;
inline LossCase loss_case(int number, int heads, bool e4m3) {
  LossCase c{.heads = heads, .e4m3 = e4m3};
  switch (number) {
    case 0:
      c.queries = 1, c.full = true;
      break;
    case 1:
      c.topk = 192, c.queries = 26;
      break;
    case 2:
      c.topk = 256, c.queries = 40, c.holes = c.part = c.wide = true, c.relu = false;
      break;
    case 3:
      c.topk = 320, c.queries = 14, c.spread = 20.0F, c.hot = true;
      break;
    case 4:
      c.topk = 256, c.queries = 14, c.holes = c.near = true;
      break;
    case 5:
      c.topk = 192, c.queries = 30, c.nan = true, c.wide = true;
      break;
    case 6:
      c.topk = 128, c.queries = 14, c.outputs = 1 + 2 + 8, c.upstream = -3.0;
      break;
    case 7:
      c.topk = 128, c.queries = 14, c.outputs = 4, c.part = true;
      break;
    case 8:
      c.topk = 128, c.queries = 300, c.keys = 3000, c.hot = true;
      break;
    default:
      c.topk = 2048, c.queries = 5, c.keys = 5000, c.holes = true;
      break;
  }
  return c;
}

inline void check_indexer_loss(std::uint64_t& seed, const std::vector<int>& all_heads, bool quick) {
  check_loss_arguments();
  for (const int heads : all_heads) {
    for (const bool e4m3 : {false, true}) {
      const int before = backward_failures;
      for (int number = 0; number < (quick ? 8 : loss_case_count); ++number) {
        check_case(loss_case(number, heads, e4m3), ++seed, number != 1);
      }
      if (!quick) {
        check_case(
            {.name = "long", .heads = heads, .topk = 8192, .e4m3 = e4m3, .queries = 2, .keys = 9000, .full = true},
            ++seed);
      }
      std::printf("Hi %d %s: %d failures\n", heads, e4m3 ? "e4m3" : "bf16", backward_failures - before);
    }
  }
}

}  // namespace tandem::test

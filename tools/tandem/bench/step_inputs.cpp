// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/step_inputs.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "tandem/bench/row_fill.hpp"
#include "tandem/results.hpp"

namespace tandem::cli {
namespace {

constexpr std::int64_t block_rows = 128;  // made at once by a thread

std::vector<Tensor*> tensors_of(InputRows& rows, bool gradient) {
  DsaInputs& in = rows.inputs;
  std::vector<Tensor*> all{&in.q, &in.kv, &in.index_q, &in.index_k, &in.index_w, &in.index_k_scale};
  if (gradient) all.push_back(&rows.dout);
  return all;
}

}  // namespace

InputRows make_step_inputs(const DsaJob& job, const Plan& plan, const Device& device, bool gradient) {
  const SequenceLayout& layout = plan.layout();
  const InputGenerator generator(job);
  std::vector<RowRange> blocks;
  for (const RowRange& segment : layout.segments(plan.rank())) {
    for (std::int64_t begin = segment.begin; begin < segment.end; begin += block_rows)
      blocks.push_back({begin, std::min(begin + block_rows, segment.end)});
  }
  const RowRange none{};
  InputRows like_these = generator.rows(Device::host(), layout, {&none, 1});
  InputRows inputs;
  const std::vector<Tensor*> to = tensors_of(inputs, gradient), shapes = tensors_of(like_these, gradient);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (shapes[i]->valid()) *to[i] = allocate_like(device, *shapes[i], plan.rows());
  }
  const Stream stream = device.create_stream({.name = "bench-inputs"});
  const std::int64_t at_once = std::int64_t{2} * fill_threads();
  std::int64_t row = 0;
  for (std::int64_t first = 0; first < std::ssize(blocks); first += at_once) {
    const std::int64_t count = std::min(at_once, std::ssize(blocks) - first);
    std::vector<InputRows> made(static_cast<std::size_t>(count));
    in_threads(count, [&](std::int64_t i) {
      const RowRange& block = blocks[static_cast<std::size_t>(first + i)];
      made[static_cast<std::size_t>(i)] = generator.rows(Device::host(), layout, {&block, 1});
    });
    for (InputRows& block : made) {
      const std::vector<Tensor*> from = tensors_of(block, gradient);
      for (std::size_t i = 0; i < to.size(); ++i) {
        if (!from[i]->valid()) continue;
        const std::size_t bytes = from[i]->row_bytes();
        stream.copy(to[i]->data_as<std::byte>() + static_cast<std::size_t>(row) * bytes, from[i]->data(),
                    bytes * static_cast<std::size_t>(from[i]->size(0)));
      }
      row += block.inputs.kv.size(0);
    }
    stream.synchronize(Deadline::after(std::chrono::minutes(5)));
  }
  return inputs;
}

}  // namespace tandem::cli

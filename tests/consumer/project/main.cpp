// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <tandem/communicator.hpp>
#include <tandem/layout.hpp>
#include <tandem/plan.hpp>
#include <tandem/version.hpp>

int main() {
  try {
    const std::array<std::int64_t, 3> cu_seqlens{0, 5, 12};
    const auto layout = tandem::SequenceLayout::zigzag(cu_seqlens, 1);
    const tandem::Plan plan(layout, 0);
    tandem::Communicator comm = tandem::Communicator::create({});

    const std::int64_t width = 4;
    const tandem::Tensor source = tandem::Tensor::allocate(comm.device(), tandem::DType::f32, {plan.rows(), width});
    for (std::int64_t i = 0; i < source.elements(); ++i) source.data_as<float>()[i] = static_cast<float>(i);

    tandem::BatchSpec spec;
    spec.gather.push_back({"kv", tandem::DType::f32, width});
    comm.prepare(plan, spec);
    const tandem::Stream stream = comm.device().create_stream();
    const std::array<tandem::GatherField, 1> fields{{{"kv", source, {}}}};
    const tandem::Work work = comm.gather(plan, fields, stream);
    work.synchronize(tandem::Deadline::after(std::chrono::seconds(10)));

    const tandem::Tensor landed = work.landed("kv");
    for (std::int64_t i = 0; i < source.elements(); ++i) {
      if (landed.data_as<float>()[i] != source.data_as<float>()[i]) {
        std::fprintf(stderr, "element %lld differs\n", static_cast<long long>(i));
        return 1;
      }
    }
    std::printf("tandem %s: %s\n", tandem::version(), layout.describe().c_str());
    comm.finalize(tandem::Deadline::after(std::chrono::seconds(10)));
  } catch (const tandem::Error& error) {
    // Caught by its own type across the library's border, which hidden visibility must not prevent.
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("consumer ok\n");
  return 0;
}

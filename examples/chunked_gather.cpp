// SPDX-License-Identifier: Apache-2.0
// A gather beside your own compute: each chunk of remote rows is used as soon as it is here.
//
//     tandem launch -n 4 -- ./chunked_gather
#include <chrono>
#include <cstdio>
#include <tandem/communicator.hpp>
#include <vector>

int main() {
  using namespace std::chrono_literals;
  try {
    // Finds the other ranks through TANDEM_STORE or MASTER_ADDR; without them this is one rank alone.
    tandem::Communicator comm = tandem::Communicator::from_environment();

    // Two packed documents, each cut into 2R slices, of which a rank holds an early and a late one.
    const std::vector<std::int64_t> cu_seqlens{0, 6000, 10000};
    const auto layout = tandem::SequenceLayout::zigzag(cu_seqlens, comm.size());
    tandem::PlanOptions options;
    options.chunk_tokens = 500;
    const tandem::Plan plan(layout, comm.rank(), options);

    // Collective, once per batch shape: ranks compare what they are about to do.
    const std::int64_t columns = 16;
    comm.prepare(plan, {{{"kv", tandem::DType::f32, columns}}, {}, "chunked_gather example"});

    // This rank's rows: every element says which position it belongs to.
    const tandem::Tensor kv = tandem::Tensor::allocate(comm.device(), tandem::DType::f32, {plan.rows(), columns});
    for (std::int64_t i = 0; i < kv.elements(); ++i) {
      kv.data_as<float>()[i] = static_cast<float>(layout.global_position(comm.rank(), i / columns));
    }

    // Enqueues and returns. The rows that this rank's queries see land in order of position.
    const tandem::Stream stream = comm.device().create_stream();
    const tandem::GatherField field{"kv", kv, {}};
    const tandem::Work work = comm.gather(plan, {&field, 1}, stream);

    double sum = 0;
    for (const tandem::ChunkTransfer& arrival : plan.arrivals()) {
      work.wait(stream, "kv", arrival.chunk);  // orders the stream; the host does not block
      stream.run([&sum, &arrival, landed = work.landed("kv")] {
        for (const tandem::Run& run : arrival.runs) {
          for (std::int64_t i = run.landed_row; i < run.landed_row + run.rows; ++i)
            sum += landed.data_as<float>()[i * columns];
        }
      });
    }
    stream.synchronize(tandem::Deadline::after(60s));
    work.synchronize(tandem::Deadline::after(60s));

    double expected = 0;
    for (std::int64_t i = 0; i < plan.landed_rows(); ++i) expected += static_cast<double>(plan.to_global(i));
    std::printf("rank %d: %lld of %lld rows landed, %llu bytes came from others, %s\n", comm.rank(),
                static_cast<long long>(plan.landed_rows()), static_cast<long long>(layout.total_rows()),
                static_cast<unsigned long long>(work.received_bytes()),
                sum == expected ? "all as they should be" : "WRONG");
    comm.finalize(tandem::Deadline::after(60s));
    return sum == expected ? 0 : 1;
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "chunked_gather: %s\n", e.what());
    return 1;
  }
}

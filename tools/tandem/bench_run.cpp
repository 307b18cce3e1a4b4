// SPDX-License-Identifier: Apache-2.0
#include "bench_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "device/bf16.hpp"

namespace tandem::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t width = 576;  // elements of a row, as of a latent key

/// Every rank sees the rows of all: the last few rows of the batch are dealt out, one to each rank, so that each has a
/// query at the very end.
SequenceLayout all_see_all(std::int64_t rows, int ranks) {
  std::vector<std::vector<RowRange>> segments(static_cast<std::size_t>(ranks));
  const std::int64_t most = rows - 1;
  for (int r = 0; r < ranks; ++r) {
    auto& mine = segments[static_cast<std::size_t>(r)];
    if (most > 0) mine.push_back({r * most, (r + 1) * most});
    mine.push_back({ranks * most + r, ranks * most + r + 1});
  }
  const std::vector<std::int64_t> offsets{0, rows * ranks};
  return SequenceLayout::from_segments(offsets, segments);
}

float value_at(std::int64_t position, std::int64_t column, std::int64_t salt) {
  // Whole numbers that bf16 holds, and whose sums over ranks fp32 does.
  return static_cast<float>((position * 131 + column * 17 + salt * 29) % 127 - 63);
}

/// An operation of one size: its memory, how to enqueue it, what it must give.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Other contents: what an earlier operation left behind is wrong from here on.
  virtual void renew(const Stream& stream, Deadline deadline) = 0;
  virtual void enqueue(const Stream& stream) = 0;
  virtual std::uint64_t count_wrong(const Stream& stream, Deadline deadline) = 0;
  std::uint64_t per_rank = 0, received = 0;

 protected:
  int salt_ = 0;
};

/// The elements of a tensor on any device.
template <class T>
std::vector<T> download(const Tensor& t, const Stream& stream, Deadline deadline) {
  std::vector<T> values(static_cast<std::size_t>(t.elements()));
  stream.copy(values.data(), t.data(), values.size() * sizeof(T));
  stream.synchronize(deadline);
  return values;
}
template <class T>
void upload(const Tensor& t, const std::vector<T>& values, const Stream& stream, Deadline deadline) {
  stream.copy(t.data(), values.data(), values.size() * sizeof(T));
  stream.synchronize(deadline);
}

class PlanOperation : public Operation {
 protected:
  PlanOperation(const BenchJob& job, Communicator& comm, std::uint64_t size, std::size_t row_bytes)
      : comm_(comm), plan_(make_plan(job, comm, size, row_bytes)) {
    per_rank = static_cast<std::uint64_t>(plan_.rows()) * row_bytes;
  }

  static Plan make_plan(const BenchJob& job, const Communicator& comm, std::uint64_t size, std::size_t row_bytes) {
    const auto rows = static_cast<std::int64_t>(size / static_cast<std::uint64_t>(job.ranks) / row_bytes);
    PlanOptions options;
    const std::int64_t shard = std::max<std::int64_t>(rows, 1);
    options.chunk_tokens = job.chunk_tokens > 0 ? job.chunk_tokens : std::clamp<std::int64_t>((shard + 7) / 8, 1, 1024);
    return Plan(all_see_all(shard, job.ranks), comm.rank(), options);
  }
  std::int64_t position(std::int64_t row) const { return plan_.layout().global_position(plan_.rank(), row); }

  Communicator& comm_;
  const Plan plan_;
};

class Gather final : public PlanOperation {
 public:
  Gather(const BenchJob& job, Communicator& comm, std::uint64_t size, const Stream& stream, Deadline deadline)
      : PlanOperation(job, comm, size, width * sizeof(std::uint16_t)) {
    comm.prepare(plan_, {{{"kv", DType::bf16, width}}, {}, "bench"});
    source_ = Tensor::allocate(comm.device(), DType::bf16, {plan_.rows(), width});
    renew(stream, deadline);
    received = static_cast<std::uint64_t>(plan_.received_rows()) * width * sizeof(std::uint16_t);
  }
  void renew(const Stream& stream, Deadline deadline) override {
    ++salt_;
    std::vector<std::uint16_t> values;
    for (std::int64_t i = 0; i < plan_.rows(); ++i) {
      for (std::int64_t c = 0; c < width; ++c)
        values.push_back(detail::bf16_from_float(value_at(position(i), c, salt_)));
    }
    upload(source_, values, stream, deadline);
  }
  void enqueue(const Stream& stream) override {
    const GatherField field{"kv", source_, {}};
    work_ = comm_.gather(plan_, {&field, 1}, stream);
    work_.wait(stream);
  }
  std::uint64_t count_wrong(const Stream& stream, Deadline deadline) override {
    const auto landed = download<std::uint16_t>(work_.landed("kv"), stream, deadline);
    std::uint64_t wrong = 0;
    for (std::int64_t i = 0; i < plan_.landed_rows(); ++i) {
      for (std::int64_t c = 0; c < width; ++c)
        wrong += landed[static_cast<std::size_t>(i * width + c)] !=
                 detail::bf16_from_float(value_at(plan_.to_global(i), c, salt_));
    }
    return wrong;
  }

 private:
  Tensor source_;
  Work work_;
};

class Reduce final : public PlanOperation {
 public:
  Reduce(const BenchJob& job, Communicator& comm, std::uint64_t size, const Stream& stream, Deadline deadline)
      : PlanOperation(job, comm, size, width * sizeof(float)) {
    comm.prepare(plan_, {{}, {{"dkv", DType::f32, width, DType::f32}}, "bench"});
    contributions_ = Tensor::allocate(comm.device(), DType::f32, {plan_.landed_rows(), width});
    result_ = Tensor::allocate(comm.device(), DType::f32, {plan_.rows(), width});
    renew(stream, deadline);
    for (const ChunkTransfer& t : plan_.departures())
      received += static_cast<std::uint64_t>(t.rows) * width * sizeof(float);
  }
  void renew(const Stream& stream, Deadline deadline) override {
    ++salt_;
    std::vector<float> values;
    for (std::int64_t i = 0; i < plan_.landed_rows(); ++i) {
      for (std::int64_t c = 0; c < width; ++c) values.push_back(value_at(plan_.to_global(i), c, salt_of(comm_.rank())));
    }
    upload(contributions_, values, stream, deadline);
  }
  void enqueue(const Stream& stream) override {
    const ReduceField field{"dkv", contributions_, result_};
    Reduction reduction = comm_.reduce(plan_, {&field, 1}, stream);
    for (const ChunkTransfer& t : plan_.arrivals()) reduction.submit(t.chunk, stream);
    reduction.finish(stream).wait(stream);
  }
  std::uint64_t count_wrong(const Stream& stream, Deadline deadline) override {
    const auto sums = download<float>(result_, stream, deadline);
    std::vector<float> want(sums.size());
    const auto add = [&](const ChunkTransfer& t, int rank) {
      for (const Run& run : t.runs) {
        for (std::int64_t i = run.owner_row; i < run.owner_row + run.rows; ++i) {
          for (std::int64_t c = 0; c < width; ++c)
            want[static_cast<std::size_t>(i * width + c)] += value_at(position(i), c, salt_of(rank));
        }
      }
    };
    for (const ChunkTransfer& t : plan_.departures()) add(t, t.peer);
    for (const ChunkTransfer& t : plan_.arrivals()) {
      if (t.step == 0) add(t, plan_.rank());
    }
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < want.size(); ++i) wrong += sums[i] != want[i];
    return wrong;
  }

 private:
  std::int64_t salt_of(int rank) const { return rank + salt_ * comm_.size(); }

  Tensor contributions_, result_;
};

/// Around the ring: to the next rank, from the one before.
class Exchange final : public Operation {
 public:
  Exchange(const BenchJob& job, Communicator& comm, std::uint64_t size, const Stream& stream, Deadline deadline)
      : comm_(comm) {
    const auto bytes = static_cast<std::int64_t>(size / static_cast<std::uint64_t>(job.ranks));
    source_ = Tensor::allocate(comm.device(), DType::u8, {std::max<std::int64_t>(bytes, 1)});
    target_ = Tensor::allocate(comm.device(), DType::u8, {std::max<std::int64_t>(bytes, 1)});
    renew(stream, deadline);
    per_rank = static_cast<std::uint64_t>(source_.elements());
    received = comm.size() > 1 ? per_rank : 0;
  }
  void renew(const Stream& stream, Deadline deadline) override {
    ++salt_;
    upload(source_, pattern(comm_.rank()), stream, deadline);
  }
  void enqueue(const Stream& stream) override {
    const int size = comm_.size(), rank = comm_.rank();
    const Transfer transfers[] = {{Transfer::Direction::receive, (rank + size - 1) % size, target_.data(), per_rank},
                                  {Transfer::Direction::send, (rank + 1) % size, source_.data(), per_rank}};
    comm_.exchange(transfers, stream).wait(stream);
  }
  std::uint64_t count_wrong(const Stream& stream, Deadline deadline) override {
    const auto found = download<std::uint8_t>(target_, stream, deadline);
    const auto want = pattern((comm_.rank() + comm_.size() - 1) % comm_.size());
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < want.size(); ++i) wrong += found[i] != want[i];
    return wrong;
  }

 private:
  std::vector<std::uint8_t> pattern(int rank) const {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(source_.elements()));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::uint8_t>((i * 7 + i / 251 + static_cast<std::size_t>(rank * 31 + salt_ * 7)) % 253);
    return bytes;
  }

  Communicator& comm_;
  Tensor source_, target_;
};

std::unique_ptr<Operation> make_operation(const BenchJob& job, Communicator& comm, std::uint64_t size,
                                          const Stream& stream, Deadline deadline) {
  switch (job.operation) {
    case BenchOperation::reduce:
      return std::make_unique<Reduce>(job, comm, size, stream, deadline);
    case BenchOperation::exchange:
      return std::make_unique<Exchange>(job, comm, size, stream, deadline);
    case BenchOperation::gather:
      break;
  }
  return std::make_unique<Gather>(job, comm, size, stream, deadline);
}

void summarize(std::vector<double> us, BenchRow& row) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) {
    return us[static_cast<std::size_t>(std::llround(q * static_cast<double>(us.size() - 1)))];
  };
  row.median_us = at(0.5);
  row.p95_us = at(0.95);
  const double count = static_cast<double>(us.size());
  const double mean = std::accumulate(us.begin(), us.end(), 0.0) / count;
  double squares = 0;
  for (const double x : us) squares += (x - mean) * (x - mean);
  row.cv = mean > 0 ? std::sqrt(squares / count) / mean : 0;
}

}  // namespace

void run_bench(const BenchJob& job, Communicator& comm, const std::function<void(const BenchRow&)>& each) {
  const Stream stream = comm.device().create_stream({.name = "bench"});
  for (const std::uint64_t size : job.sizes) {
    const auto deadline = [&] { return Deadline::after(job.timeout); };
    const auto operation = make_operation(job, comm, size, stream, deadline());
    std::vector<double> us;
    for (int i = -job.warmup; i < job.iterations; ++i) {
      // Every rank starts when all are done with the last one: what a rank waits for is the operation alone.
      comm.barrier(deadline());
      const auto before = Clock::now();
      operation->enqueue(stream);
      stream.synchronize(deadline());
      if (i >= 0) us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
    }
    BenchRow row;
    row.per_rank = operation->per_rank;
    row.size = operation->per_rank * static_cast<std::uint64_t>(comm.size());
    row.received = operation->received;
    summarize(std::move(us), row);
    row.checked = job.check;
    if (job.check) {
      operation->renew(stream, deadline());
      comm.barrier(deadline());
      operation->enqueue(stream);
      row.wrong = operation->count_wrong(stream, deadline());
    }
    each(row);
  }
}

}  // namespace tandem::cli

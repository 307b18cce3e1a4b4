// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/tandem_contenders.hpp"

#include <algorithm>
#include <vector>

namespace tandem::cli {
namespace {

constexpr auto width = static_cast<std::uint64_t>(bench_row_elements);
constexpr std::uint64_t gather_row = width * 2, reduce_row = width * 4;

/// Every rank sees the rows of all: the last few rows of the batch are dealt out, one to each rank, so that each has a
/// query at the very end. Landed rows are positions then.
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

// An eighth of a shard, but not below what a link takes some ten microseconds for; small ones travel in one piece.
std::int64_t default_chunk_tokens(std::int64_t rows, std::uint64_t row_bytes) {
  const std::int64_t least = static_cast<std::int64_t>((std::uint64_t{4} << 20) / row_bytes);
  if (rows <= 2 * least) return 2 * rows + 2;
  return std::max((rows + 7) / 8, least);
}

Plan make_plan(const BenchJob& job, const Communicator& comm, std::uint64_t size, std::uint64_t row_bytes) {
  const std::int64_t rows = bench_rows(size, comm.size(), row_bytes);
  PlanOptions options;
  options.chunk_tokens = job.chunk_tokens > 0 ? job.chunk_tokens : default_chunk_tokens(rows, row_bytes);
  return Plan(all_see_all(rows, comm.size()), comm.rank(), options);
}

std::uint64_t rows_of_others(std::span<const ChunkTransfer> transfers) {
  std::uint64_t rows = 0;
  for (const ChunkTransfer& t : transfers) rows += t.step > 0 ? static_cast<std::uint64_t>(t.rows) : 0;
  return rows;
}

Volume volume_of(const Plan& plan, std::uint64_t received_rows, std::uint64_t row_bytes) {
  const std::uint64_t per_rank = static_cast<std::uint64_t>(plan.rows()) * row_bytes;
  return {per_rank * static_cast<std::uint64_t>(plan.ranks()), per_rank, received_rows * row_bytes};
}

/// Chunks of `plan` that arrive (of a gather) or that this rank contributes to (of a reduction), those of others first.
std::vector<ChunkId> chunks_of_others_first(const Plan& plan) {
  std::vector<ChunkId> chunks;
  for (const bool own : {false, true}) {
    for (const ChunkTransfer& t : plan.arrivals()) {
      if ((t.step == 0) == own) chunks.push_back(t.chunk);
    }
  }
  return chunks;
}

/// Part `part` of `parts` equal ones.
std::span<const ChunkId> part_of(const std::vector<ChunkId>& chunks, int part, int parts) {
  const auto cut = [&](int p) { return chunks.size() * static_cast<std::size_t>(p) / static_cast<std::size_t>(parts); };
  return std::span(chunks).subspan(cut(part), cut(part + 1) - cut(part));
}

/// Own rows are written where they land, so that nothing but what travels is copied.
class Gather final : public Contender {
 public:
  Gather(Plan plan, Communicator& comm, BenchData& data)
      : Contender("tandem", volume_of(plan, rows_of_others(plan.arrivals()), gather_row), 2),
        comm_(comm),
        data_(data),
        plan_(std::move(plan)),
        chunks_(chunks_of_others_first(plan_)) {
    comm.prepare(plan_, {{{"kv", DType::bf16, bench_row_elements}}, {}, "bench"});
    // As large on all ranks, so that it is one collective call whatever each of them needs.
    const Buffer buffer = comm.allocate(volume().size);
    landed_ = Tensor::view(buffer, 0, DType::bf16, {plan_.landed_rows(), bench_row_elements});
  }
  void renew(const Stream& stream, std::uint64_t salt) override {
    salt_ = salt;
    data_.poison(stream, landed_.data(), landed_bytes());
    for (const ChunkTransfer& t : plan_.arrivals()) {
      if (t.step > 0) continue;
      for (const Run& run : t.runs) {
        const std::uint64_t at = static_cast<std::uint64_t>(run.landed_row) * gather_row;
        data_.fill(stream, landed_.data_as<std::byte>() + at, static_cast<std::uint64_t>(run.rows) * gather_row, at,
                   salt);
      }
    }
  }
  void enqueue(const Stream& stream) override {
    begin(stream);
    work_.wait(stream);
  }
  void check(const Stream& stream) override { data_.check(stream, landed_.data(), landed_bytes(), 0, salt_); }

  void begin_parts(const Stream& communication, int parts) override {
    parts_ = parts;
    begin(communication);
  }
  void before_part(const Stream& compute, int part) override {
    for (const ChunkId chunk : part_of(chunks_, part, parts_)) work_.wait(compute, "kv", chunk);
  }
  void after_part(const Stream&, int) override {}
  void end_parts(const Stream& compute) override { work_.wait(compute); }

 private:
  void begin(const Stream& stream) {
    const GatherField field{"kv", {}, landed_, true};
    work_ = comm_.gather(plan_, {&field, 1}, stream);
  }
  std::uint64_t landed_bytes() const { return static_cast<std::uint64_t>(plan_.landed_rows()) * gather_row; }

  Communicator& comm_;
  BenchData& data_;
  const Plan plan_;
  const std::vector<ChunkId> chunks_;
  Tensor landed_;
  Work work_;
  std::uint64_t salt_ = 0;
  int parts_ = 1;
};

class Reduce final : public Contender {
 public:
  Reduce(Plan plan, Communicator& comm, BenchData& data)
      : Contender("tandem", volume_of(plan, rows_of_others(plan.departures()), reduce_row), 4),
        comm_(comm),
        data_(data),
        plan_(std::move(plan)),
        chunks_(chunks_of_others_first(plan_)) {
    comm.prepare(plan_, {{}, {{"dkv", DType::f32, bench_row_elements, DType::f32}}, "bench"});
    contributions_ = Tensor::allocate(comm.device(), DType::f32, {plan_.landed_rows(), bench_row_elements});
    result_ = Tensor::allocate(comm.device(), DType::f32, {plan_.rows(), bench_row_elements});
  }
  void renew(const Stream& stream, std::uint64_t salt) override {
    salt_ = salt;
    data_.poison(stream, result_.data(), static_cast<std::uint64_t>(result_.elements()) * sizeof(float));
    data_.fill_terms(stream, contributions_.data_as<float>(), static_cast<std::uint64_t>(contributions_.elements()), 0,
                     comm_.rank(), salt);
  }
  void enqueue(const Stream& stream) override {
    begin_parts(stream, 1);
    after_part(stream, 0);
    end_parts(stream);
  }
  void check(const Stream& stream) override {
    const auto most = static_cast<std::uint64_t>(plan_.rows()) - 1;
    const auto rank = static_cast<std::uint64_t>(comm_.rank()), ranks = static_cast<std::uint64_t>(comm_.size());
    auto* const sums = result_.data_as<float>();
    data_.check_sums(stream, sums, most * width, rank * most * width, 0, comm_.size(), salt_);
    // Of the rows that were dealt out, the first has a query after it on every rank, the last on one alone.
    data_.check_sums(stream, sums + most * width, width, (ranks * most + rank) * width, comm_.rank(), comm_.size(),
                     salt_);
  }

  void begin_parts(const Stream& communication, int parts) override {
    parts_ = parts;
    const ReduceField field{"dkv", contributions_, result_};
    reduction_ = comm_.reduce(plan_, {&field, 1}, communication);
  }
  void before_part(const Stream&, int) override {}
  void after_part(const Stream& compute, int part) override {
    for (const ChunkId chunk : part_of(chunks_, part, parts_)) reduction_.submit(chunk, compute);
  }
  void end_parts(const Stream& compute) override { reduction_.finish(compute).wait(compute); }

 private:
  Communicator& comm_;
  BenchData& data_;
  const Plan plan_;
  const std::vector<ChunkId> chunks_;
  Tensor contributions_, result_;
  Reduction reduction_;
  std::uint64_t salt_ = 0;
  int parts_ = 1;
};

/// Around the ring: to the next rank, from the one before.
class Exchange final : public Contender {
 public:
  Exchange(std::uint64_t bytes, Communicator& comm, BenchData& data)
      : Contender("tandem",
                  {bytes * static_cast<std::uint64_t>(comm.size()), bytes, comm.size() > 1 ? bytes : std::uint64_t{0}},
                  1),
        comm_(comm),
        data_(data),
        source_(Tensor::allocate(comm.device(), DType::u8, {static_cast<std::int64_t>(bytes)})),
        target_(comm.allocate(static_cast<std::size_t>(bytes))) {}
  void renew(const Stream& stream, std::uint64_t salt) override {
    salt_ = salt;
    data_.poison(stream, target_.data(), volume().per_rank);
    data_.fill(stream, source_.data(), volume().per_rank, 0, salt_of(comm_.rank()));
  }
  void enqueue(const Stream& stream) override {
    begin_parts(stream, 1);
    work_.wait(stream);
  }
  void check(const Stream& stream) override {
    data_.check(stream, target_.data(), volume().per_rank, 0, salt_of(previous()));
  }

  void begin_parts(const Stream& communication, int) override {
    const Transfer transfers[] = {
        {Transfer::Direction::receive, previous(), target_.data(), volume().per_rank, nullptr},
        {Transfer::Direction::send, (comm_.rank() + 1) % comm_.size(), source_.data(), volume().per_rank,
         target_.data()}};
    work_ = comm_.exchange(transfers, communication);
  }
  // What arrives is one piece: the first part needs it.
  void before_part(const Stream& compute, int part) override {
    if (part == 0) work_.wait(compute);
  }
  void after_part(const Stream&, int) override {}
  void end_parts(const Stream& compute) override { work_.wait(compute); }

 private:
  int previous() const { return (comm_.rank() + comm_.size() - 1) % comm_.size(); }
  std::uint64_t salt_of(int rank) const {
    return salt_ * static_cast<std::uint64_t>(comm_.size()) + static_cast<std::uint64_t>(rank);
  }

  Communicator& comm_;
  BenchData& data_;
  Tensor source_;
  Buffer target_;
  Work work_;
  std::uint64_t salt_ = 0;
};

}  // namespace

std::int64_t bench_rows(std::uint64_t size, int ranks, std::uint64_t row_bytes) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(size / static_cast<std::uint64_t>(ranks) / row_bytes));
}

std::unique_ptr<Contender> make_tandem_contender(const BenchJob& job, Communicator& comm, BenchData& data,
                                                 std::uint64_t size) {
  switch (job.operation) {
    case BenchOperation::reduce:
      return std::make_unique<Reduce>(make_plan(job, comm, size, reduce_row), comm, data);
    case BenchOperation::exchange:
      return std::make_unique<Exchange>(std::max<std::uint64_t>(size / static_cast<std::uint64_t>(comm.size()), 1),
                                        comm, data);
    case BenchOperation::gather:
      break;
  }
  return std::make_unique<Gather>(make_plan(job, comm, size, gather_row), comm, data);
}

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <type_traits>

#include "device/cuda/check.hpp"
#include "device/cuda/native.hpp"
#include "tandem/bench/cuda_parts.hpp"
#include "tandem/bench/cuda_timer.hpp"
#include "tandem/bench/tandem_contenders.hpp"
#include "tandem/usage.hpp"
#include "transports/nccl/library.hpp"

namespace tandem::cli {
namespace {

using detail::cuda::DeviceGuard;
using detail::cuda::native_stream;
using nccl::library;
using nccl::Library;

/// How NCCL is run.
struct Setting {
  const char* name;
  bool windows;   ///< memory of ncclMemAlloc in symmetric windows; else as cudaMalloc gives it
  bool zero_cta;  ///< its policy to use copy engines instead of multiprocessors where it can
};
constexpr Setting settings[] = {{"nccl", true, false}, {"nccl-plain", false, false}, {"nccl-zero-cta", true, true}};

bool has_windows(const Library& nccl) {
  return nccl.ncclCommWindowRegister != nullptr && nccl.ncclCommWindowDeregister != nullptr;
}

class NcclComm {
 public:
  NcclComm(const Setting& s, const detail::cuda::Context& c, BenchRanks& ranks) : setting(s), context(c) {
    const Library& nccl = library();
    const DeviceGuard guard(context);
    ncclUniqueId id{};
    if (ranks.rank() == 0) nccl::check(nccl, nccl.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    const std::string told = ranks.from_first(std::string(id.internal, sizeof(id.internal)));
    std::memcpy(id.internal, told.data(), sizeof(id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
#ifdef NCCL_CTA_POLICY_ZERO
    if (setting.zero_cta) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
    nccl::check(nccl, nccl.ncclCommInitRankConfig(&comm, ranks.size(), id, ranks.rank(), &config),
                "ncclCommInitRankConfig", nullptr);
  }
  ~NcclComm() {
    const detail::cuda::QuietDeviceGuard guard(context);
    if (guard && comm != nullptr) static_cast<void>(library().ncclCommDestroy(comm));
  }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  const Setting& setting;
  const detail::cuda::Context context;
  ncclComm_t comm = nullptr;
};

/// Memory that NCCL works in, as its setting wants it.
class NcclMemory {
 public:
  NcclMemory(const NcclComm& comm, const Device& device, std::uint64_t bytes) : comm_(comm) {
    if (!comm.setting.windows) {
      plain_ = device.allocate(static_cast<std::size_t>(bytes));
      data_ = plain_.data();
      return;
    }
    const DeviceGuard guard(comm.context);
    nccl::check(library(), library().ncclMemAlloc(&data_, static_cast<std::size_t>(bytes)), "ncclMemAlloc", comm.comm);
#ifdef NCCL_WIN_COLL_SYMMETRIC
    const ncclResult_t result = library().ncclCommWindowRegister(comm.comm, data_, static_cast<std::size_t>(bytes),
                                                                 &window_, NCCL_WIN_COLL_SYMMETRIC);
    if (result != ncclSuccess) static_cast<void>(library().ncclMemFree(data_));
    nccl::check(library(), result, "ncclCommWindowRegister", comm.comm);
#endif
  }
  ~NcclMemory() {
    const detail::cuda::QuietDeviceGuard guard(comm_.context);
    if (!guard || plain_.data() != nullptr) return;
    if (window_ != nullptr) static_cast<void>(library().ncclCommWindowDeregister(comm_.comm, window_));
    static_cast<void>(library().ncclMemFree(data_));
  }
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const NcclComm& comm_;
  Buffer plain_;
  void* data_ = nullptr;
  void* window_ = nullptr;
};

Volume volume_of(std::uint64_t rows, std::uint64_t row_bytes, int ranks) {
  const std::uint64_t per_rank = rows * row_bytes;
  return {per_rank * static_cast<std::uint64_t>(ranks), per_rank, per_rank * static_cast<std::uint64_t>(ranks - 1)};
}

/// In place, over one buffer that has the rows of all ranks, rank by rank. In parts it is one collective for each, over
/// its share of the rows.
class NcclContender : public Contender {
 public:
  NcclContender(const NcclComm& comm, const Device& device, BenchData& data, std::uint64_t rows,
                std::uint64_t row_bytes, std::uint64_t element, int rank, int ranks, int repeat)
      : Contender(comm.setting.name, volume_of(rows, row_bytes, ranks), element),
        comm_(comm),
        data_(data),
        memory_(comm, device, volume().size),
        part_done_(comm.context),
        row_bytes_(row_bytes),
        rows_(rows),
        rank_(static_cast<std::uint64_t>(rank)),
        ranks_(static_cast<std::uint64_t>(ranks)),
        repeat_(repeat) {}

  void enqueue(const Stream& stream) override { run(stream, 0, rows_); }

  void divide(int parts) override { parts_ = static_cast<std::uint64_t>(parts); }
  void begin_parts(const Stream& communication, int) override { communication_ = communication; }
  void end_parts(const Stream& compute) override {
    part_done_.record(communication_);
    part_done_.hold(compute);
  }

 protected:
  virtual ncclResult_t call(std::byte* all, std::byte* own, std::size_t count, cudaStream_t stream) = 0;

  /// The collective over rows [begin, end) of each rank.
  void run(const Stream& stream, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t bytes = (end - begin) * row_bytes_;
    std::byte* const all = memory_.data() + begin * row_bytes_ * ranks_;
    const DeviceGuard guard(comm_.context);
    for (int i = 0; i < repeat_; ++i) {
      nccl::check(library(),
                  call(all, all + rank_ * bytes, static_cast<std::size_t>(bytes / element_bytes()),
                       native_stream(stream).handle),
                  "an NCCL collective", comm_.comm);
    }
  }
  void run_part(int part) {
    const auto [begin, end] = rows_of(static_cast<std::uint64_t>(part));
    if (end > begin) run(communication_, begin, end);
  }
  std::pair<std::uint64_t, std::uint64_t> rows_of(std::uint64_t part) const {
    return {rows_ * part / parts_, rows_ * (part + 1) / parts_};
  }
  /// Calls `f` for each part with where `rank`'s rows of it lie, their bytes, and how many bytes of all ranks' rows,
  /// rank by rank, come before them.
  template <class F>
  void for_each_part(std::uint64_t rank, const F& f) const {
    for (std::uint64_t p = 0; p < parts_; ++p) {
      const auto [begin, end] = rows_of(p);
      const std::uint64_t bytes = (end - begin) * row_bytes_;
      if (bytes == 0) continue;
      f(memory_.data() + begin * row_bytes_ * ranks_ + rank * bytes, bytes, (rank * rows_ + begin) * row_bytes_);
    }
  }

  const NcclComm& comm_;
  BenchData& data_;
  const NcclMemory memory_;
  const TimedEvent part_done_;
  Stream communication_;
  std::uint64_t salt_ = 0;
  const std::uint64_t row_bytes_, rows_, rank_, ranks_;
  std::uint64_t parts_ = 1;
  const int repeat_;
};

class AllGather final : public NcclContender {
 public:
  using NcclContender::NcclContender;
  void renew(const Stream& stream, std::uint64_t salt) override {
    salt_ = salt;
    data_.poison(stream, memory_.data(), volume().size);
    for_each_part(rank_, [&](std::byte* at, std::uint64_t bytes, std::uint64_t first) {
      data_.fill(stream, at, bytes, first, salt);
    });
  }
  void check(const Stream& stream) override {
    for (std::uint64_t r = 0; r < ranks_; ++r) {
      for_each_part(r, [&](const std::byte* at, std::uint64_t bytes, std::uint64_t first) {
        data_.check(stream, at, bytes, first, salt_);
      });
    }
  }
  void begin_parts(const Stream& communication, int parts) override {
    NcclContender::begin_parts(communication, parts);
    parts_done_.clear();
    for (int p = 0; p < parts; ++p) {
      run_part(p);
      parts_done_.push_back(std::make_unique<TimedEvent>(comm_.context));
      parts_done_.back()->record(communication);
    }
  }
  void before_part(const Stream& compute, int part) override {
    parts_done_[static_cast<std::size_t>(part)]->hold(compute);
  }
  void after_part(const Stream&, int) override {}

 private:
  ncclResult_t call(std::byte* all, std::byte* own, std::size_t count, cudaStream_t stream) override {
    return library().ncclAllGather(own, all, count, ncclBfloat16, comm_.comm, stream);
  }
  std::vector<std::unique_ptr<TimedEvent>> parts_done_;
};

class ReduceScatter final : public NcclContender {
 public:
  using NcclContender::NcclContender;
  void renew(const Stream& stream, std::uint64_t salt) override {
    salt_ = salt;
    for (std::uint64_t r = 0; r < ranks_; ++r) {
      for_each_part(r, [&](std::byte* at, std::uint64_t bytes, std::uint64_t first) {
        data_.fill_terms(stream, reinterpret_cast<float*>(at), bytes / sizeof(float), first / sizeof(float),
                         static_cast<int>(rank_), salt);
      });
    }
  }
  void check(const Stream& stream) override {
    for_each_part(rank_, [&](const std::byte* at, std::uint64_t bytes, std::uint64_t first) {
      data_.check_sums(stream, reinterpret_cast<const float*>(at), bytes / sizeof(float), first / sizeof(float), 0,
                       static_cast<int>(ranks_), salt_);
    });
  }
  void before_part(const Stream&, int) override {}
  void after_part(const Stream& compute, int part) override {
    part_done_.record(compute);
    part_done_.hold(communication_);
    run_part(part);
  }

 private:
  ncclResult_t call(std::byte* all, std::byte* own, std::size_t count, cudaStream_t stream) override {
    return library().ncclReduceScatter(all, own, count, ncclFloat32, ncclSum, comm_.comm, stream);
  }
};

class Side final : public NcclSide {
 public:
  Side(const BenchJob& job, const Device& device, BenchRanks& ranks) : job_(job), device_(device), ranks_(ranks) {
    const detail::cuda::Context context = native_stream(device.create_stream()).context;
    for (const Setting& setting : settings) {
      if (setting.windows && !has_windows(library())) continue;
      comms_.push_back(std::make_unique<NcclComm>(setting, context, ranks));
    }
  }
  std::string version() const override { return nccl::version_text(library().version); }
  std::vector<std::unique_ptr<Contender>> contenders(std::uint64_t size, BenchData& data) override {
    std::vector<std::unique_ptr<Contender>> list;
    const bool gather = job_.operation == BenchOperation::gather;
    const std::uint64_t element = gather ? 2 : 4;
    const std::uint64_t row = static_cast<std::uint64_t>(bench_row_elements) * element;
    const auto rows = static_cast<std::uint64_t>(bench_rows(size, ranks_.size(), row));
    const auto add = [&]<class T>(std::type_identity<T>, const NcclComm& comm) {
      list.push_back(
          std::make_unique<T>(comm, device_, data, rows, row, element, ranks_.rank(), ranks_.size(), job_.slow_link));
    };
    for (const auto& comm : comms_) {
      if (gather) {
        add(std::type_identity<AllGather>(), *comm);
      } else {
        add(std::type_identity<ReduceScatter>(), *comm);
      }
    }
    return list;
  }

 private:
  const BenchJob& job_;
  const Device device_;
  BenchRanks& ranks_;
  std::vector<std::unique_ptr<NcclComm>> comms_;
};

// NCCL would say so, too, after some time and less clearly.
void refuse_shared_gpus(const Device& device, BenchRanks& ranks) {
  const detail::cuda::Context context = native_stream(device.create_stream()).context;
  char bus[32] = {};
  {
    const DeviceGuard guard(context);
    detail::cuda::check(cudaDeviceGetPCIBusId(bus, sizeof(bus), context.ordinal), "cudaDeviceGetPCIBusId",
                        context.ordinal);
  }
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  std::map<std::string, int> first_rank;
  const std::vector<std::string> gpus = ranks.all(fmt::format("{} of {}", bus, host));
  for (int r = 0; r < ranks.size(); ++r) {
    const auto [other, is_new] = first_rank.emplace(gpus[static_cast<std::size_t>(r)], r);
    if (!is_new) {
      throw UsageError(
          fmt::format("--versus: ranks {} and {} share GPU {}, and NCCL wants one for each rank: use "
                      "fewer --ranks, or more GPUs",
                      other->second, r, other->first));
    }
  }
}

}  // namespace

std::unique_ptr<NcclSide> make_nccl_side(const BenchJob& job, const Device& device, BenchRanks& ranks) {
  refuse_shared_gpus(device, ranks);
  library();  // says what is missing before anybody waits for anybody
  return std::make_unique<Side>(job, device, ranks);
}

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#include "gpu/activity/recorder.hpp"

#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace tandem::testing_activity {

namespace {

struct Cupti {
  std::string missing;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
};

Cupti load() {
  Cupti cupti;
  const std::string name = fmt::format("libcupti.so.{}", CUDA_VERSION / 1000);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(TANDEM_CUPTI_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    cupti.missing = fmt::format("neither {} nor {} can be loaded", name, TANDEM_CUPTI_LIBRARY);
    return cupti;
  }
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) cupti.missing = fmt::format("{} has no {}", name, symbol);
  };
  find(cupti.register_callbacks, "cuptiActivityRegisterCallbacks");
  find(cupti.enable, "cuptiActivityEnable");
  find(cupti.disable, "cuptiActivityDisable");
  find(cupti.flush_all, "cuptiActivityFlushAll");
  find(cupti.next_record, "cuptiActivityGetNextRecord");
  find(cupti.dropped_records, "cuptiActivityGetNumDroppedRecords");
  find(cupti.result_string, "cuptiGetResultString");
  return cupti;
}

const Cupti& cupti() {
  static const Cupti loaded = load();
  return loaded;
}

void check(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  cupti().result_string(result, &text);
  throw std::runtime_error(fmt::format("{}: {}", call, text != nullptr ? text : "unknown"));
}

constexpr CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

struct Seen {
  std::mutex mutex;
  std::vector<Activity> activities;
  std::string trouble;
};
Seen& seen() {
  static Seen all;
  return all;
}

Activity read(const CUpti_Activity& record) {
  Activity a;
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL:
      a.name = reinterpret_cast<const CUpti_ActivityKernel10&>(record).name;
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      a.kind = Activity::Kind::copy;
      a.bytes = copy.bytes;
      a.between_gpus = copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
      a.by_copy_engine = copy.channelType == CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY;
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record);
      a.kind = Activity::Kind::copy;
      a.bytes = copy.bytes;
      a.between_gpus = copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
      a.by_copy_engine = copy.channelType == CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY;
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET:
      a.kind = Activity::Kind::set;
      a.bytes = reinterpret_cast<const CUpti_ActivityMemset4&>(record).bytes;
      break;
    default:
      throw std::runtime_error(fmt::format("a record of kind {}", static_cast<int>(record.kind)));
  }
  return a;
}

void CUPTIAPI buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, buffer_bytes));
  *size = *buffer != nullptr ? buffer_bytes : 0;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI buffer_completed(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                               std::size_t valid) {
  const std::lock_guard lock(seen().mutex);
  try {
    CUpti_Activity* record = nullptr;
    while (valid > 0 && cupti().next_record(buffer, valid, &record) == CUPTI_SUCCESS)
      seen().activities.push_back(read(*record));
    std::size_t dropped = 0;
    check(cupti().dropped_records(context, stream, &dropped), "cuptiActivityGetNumDroppedRecords");
    if (dropped > 0) seen().trouble = fmt::format("CUPTI dropped {} records", dropped);
  } catch (const std::exception& e) {
    seen().trouble = e.what();
  }
  std::free(buffer);
}

}  // namespace

std::string Activity::describe() const {
  if (kind == Kind::kernel) return "kernel " + name;
  const char* const where = between_gpus ? ", between GPUs" : "";
  const char* const how = by_copy_engine ? ", copy engine" : "";
  return fmt::format("{} of {} bytes{}{}", kind == Kind::copy ? "copy" : "set", bytes, where, how);
}

std::string ActivityRecorder::missing() { return cupti().missing; }

ActivityRecorder::ActivityRecorder() {
  if (!cupti().missing.empty()) throw std::runtime_error(cupti().missing);
  check(cupti().register_callbacks(buffer_requested, buffer_completed), "cuptiActivityRegisterCallbacks");
  for (const CUpti_ActivityKind kind : kinds) check(cupti().enable(kind), "cuptiActivityEnable");
}

ActivityRecorder::~ActivityRecorder() {
  for (const CUpti_ActivityKind kind : kinds) static_cast<void>(cupti().disable(kind));
}

void ActivityRecorder::start() { static_cast<void>(stop()); }

std::vector<Activity> ActivityRecorder::stop() {
  check(cupti().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  const std::lock_guard lock(seen().mutex);
  if (!seen().trouble.empty()) throw std::runtime_error(std::exchange(seen().trouble, ""));
  return std::exchange(seen().activities, {});
}

}  // namespace tandem::testing_activity

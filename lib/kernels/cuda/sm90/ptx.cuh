// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

/// Thin names for the Hopper instructions that CUDA C++ does not spell: asynchronous barriers, the bulk tensor copy,
/// named barriers, register reallocation and the bookkeeping of warpgroup matrix instructions.
namespace tandem::detail::sm90 {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// An mbarrier in shared memory. Waits name the parity of the phase that must be over; a fresh barrier counts as having
/// finished a phase of parity 1, so a producer's first wait on an "empty" barrier passes with parity 1.
struct Mbarrier {
  std::uint64_t word;

  __device__ __forceinline__ void init(std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word)) : "memory");
  }
  __device__ __forceinline__ void arrive_expect(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ bool try_wait(std::uint32_t parity) {
    std::uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(&word)), "r"(parity)
                 : "memory");
    return done != 0;
  }
  __device__ __forceinline__ bool test(std::uint32_t parity) {
    std::uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(&word)), "r"(parity)
                 : "memory");
    return done != 0;
  }
  __device__ __forceinline__ void wait(std::uint32_t parity) {
#ifdef TANDEM_WAIT_LIMIT
    // For tests: after so many clocks a wait becomes an error instead of a stuck device.
    const long long start = clock64();
    while (!try_wait(parity)) {
      if (clock64() - start > TANDEM_WAIT_LIMIT) __trap();
    }
#else
    while (!try_wait(parity)) {
    }
#endif
  }
};

/// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Copies the box of `map` at (column, row) to shared memory and completes on `barrier`. Rows outside the tensor are 0.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, int column, int row, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(shared_address(&barrier.word)), "r"(column), "r"(row)
      : "memory");
}

/// Copies `bytes`, a multiple of 16, to shared memory and completes on `barrier`.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, std::uint32_t bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier.word))
               : "memory");
}

/// Copies 16 bytes to shared memory, asynchronously, as ordinary accesses do it.
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
/// This thread arrives when all its copies of 16 bytes so far are there.
__device__ __forceinline__ void arrive_after_copies(Mbarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&barrier.word)) : "memory");
}

/// Orders this thread's ordinary accesses before those of the copy engine that a later barrier lets start.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

template <int Id, int Threads>
__device__ __forceinline__ void named_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}
template <int Id, int Threads>
__device__ __forceinline__ void named_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

template <int Registers>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Matrix descriptor of a K-major operand in 128-byte swizzled rows: groups of 8 rows, 1024 bytes apart. Advancing by
/// 32 bytes along K inside a row adds 2.
__device__ __forceinline__ std::uint64_t swizzled_descriptor(const void* tile) {
  constexpr std::uint64_t group_stride = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t leading = std::uint64_t{1} << 16;
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62;
  return swizzle_128 | group_stride | leading | ((shared_address(tile) & 0x3FFFF) >> 4);
}

/// Without a branch: the compiler would make one, and run the stores of an unrolled loop one after another.
__device__ __forceinline__ void store_if(bool condition, std::uint64_t* to, std::uint64_t value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.b64 [%1], %2;\n}\n" ::"r"(
                   static_cast<unsigned>(condition)),
               "l"(to), "l"(value)
               : "memory");
}

/// Reads shared memory here and not where the compiler would: beside matrix products it answers slowly.
__device__ __forceinline__ float4 read_now(const float4* from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(shared_address(from))
               : "memory");
  return v;
}

/// Greater of the two, NaN if either is: fmaxf would hide it.
__device__ __forceinline__ float max_nan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

}  // namespace tandem::detail::sm90

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

/// A kernel's shared memory: one thread makes its barriers, with init(), and all see them.
template <class Shared>
__device__ __forceinline__ Shared& set_up(std::uint8_t* storage) {
  auto& shared = *reinterpret_cast<Shared*>(storage);
  if (threadIdx.x == 0) {
    shared.init();
    fence_barrier_init();
  }
  __syncthreads();
  return shared;
}

/// Copies the box of `map` at (column, row) to shared memory and completes on `barrier`. Rows outside the tensor are 0.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, int column, int row, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(shared_address(&barrier.word)), "r"(column), "r"(row)
      : "memory");
}

/// The same of a tensor of three dimensions.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, int column, int row, int plane,
                                         Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared_address(to)),
      "l"(map), "r"(shared_address(&barrier.word)), "r"(column), "r"(row), "r"(plane)
      : "memory");
}

/// Copies `bytes`, a multiple of 16, to shared memory and completes on `barrier`.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, std::uint32_t bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier.word))
               : "memory");
}

/// What is read or written once: L2 gives its place away first.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, std::uint32_t bytes, Mbarrier& barrier,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier.word)), "l"(policy)
      : "memory");
}
/// The other way; what this thread has stored so is a group once committed.
__device__ __forceinline__ void store_bulk(void* to, const void* from, std::uint32_t bytes, std::uint64_t policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void commit_bulk_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until this thread's stores have read shared memory, or have ended altogether.
__device__ __forceinline__ void wait_bulk_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_bulk_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Copies 16 bytes to shared memory, asynchronously, as ordinary accesses do it.
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
/// Copies 16 bytes of which the first `bytes` are read and the rest are 0; they bypass the L1 cache.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// Arrives on `barrier` once this thread's copies so far have landed; the barrier expects every such arrival.
__device__ __forceinline__ void arrive_after_copies(Mbarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier.word)) : "memory");
}

/// Orders this thread's ordinary accesses before those of the copy engine that a later barrier lets start.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// The same for accesses to shared memory alone.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

/// Keeps the compiler from moving accesses of accumulators across this place.
template <int Count>
__device__ __forceinline__ void pin(float (&accumulators)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

/// Matrix descriptor of a K-major operand in 128-byte swizzled rows: groups of 8 rows, 1024 bytes apart. Advancing by
/// 32 bytes along K inside a row adds 2.
__device__ __forceinline__ std::uint64_t swizzled_descriptor(const void* tile) {
  constexpr std::uint64_t group_stride = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t leading = std::uint64_t{1} << 16;
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62;
  return swizzle_128 | group_stride | leading | ((shared_address(tile) & 0x3FFFF) >> 4);
}

/// Lower word of that descriptor; the upper one is 0x40000040. Sums of it cannot overflow. Made anew wherever it is
/// used: the compiler would keep all the sums of a loop in registers.
__device__ __forceinline__ std::uint32_t operand_word(std::uint32_t address, std::uint32_t stride) {
  std::uint32_t word;
  asm volatile("mov.b32 %0, %1;" : "=r"(word) : "r"(stride >> 4 << 16 | (address & 0x3FFFF) >> 4));
  return word;
}
__device__ __forceinline__ std::uint32_t swizzled_operand(const void* tile) {
  return operand_word(shared_address(tile), 16);
}
/// The same of the tile read the other way, its rows along K: 64 columns wide, 16 rows a step (2048 bytes, which adds
/// 128). Wider operands go on in the next tile, `stride` bytes on.
__device__ __forceinline__ std::uint32_t transposed_operand(const void* tile, std::uint32_t stride) {
  return operand_word(shared_address(tile), stride);
}

/// Stores 8 x 8 matrices of 16-bit elements transposed: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_transposed(std::uint32_t to, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_transposed(std::uint32_t to, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                 std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
/// The same, not transposed.
__device__ __forceinline__ void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

/// Two floats as bf16, the first in the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
/// Two e4m3 codes as bf16, which has all their values.
__device__ __forceinline__ std::uint32_t bf16_from_e4m3(std::uint32_t codes) {
  std::uint32_t out;
  asm("{\n.reg .b32 both;\n.reg .b16 low, high;\n.reg .f32 x, y;\ncvt.rn.f16x2.e4m3x2 both, %1;\n"
      "mov.b32 {low, high}, both;\ncvt.f32.f16 x, low;\ncvt.f32.f16 y, high;\ncvt.rn.bf16x2.f32 %0, y, x;\n}\n"
      : "=r"(out)
      : "h"(static_cast<std::uint16_t>(codes)));
  return out;
}
/// 2^x by the special function unit; 0 for -infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// Without a branch: the compiler would make one, and run the stores of an unrolled loop one after another.
__device__ __forceinline__ void store_if(bool condition, std::uint64_t* to, std::uint64_t value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.b64 [%1], %2;\n}\n" ::"r"(
                   static_cast<unsigned>(condition)),
               "l"(to), "l"(value)
               : "memory");
}

/// Adds four floats to global memory; 16 bytes aligned.
__device__ __forceinline__ void add_four(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
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

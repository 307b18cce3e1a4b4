// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/cuda/generic/chosen_rows.cuh"
#include "kernels/cuda/generic/index_scores.cuh"
#include "kernels/cuda/generic/lists.cuh"
#include "kernels/cuda/generic/ordered.cuh"
#include "kernels/cuda/generic/tiles.cuh"

namespace tandem::detail::cuda::generic {
namespace {

constexpr double least_target = 1e-10;
/// Heads whose gradients a block computes, and those of them that are in shared memory at once.
constexpr int block_heads = 64;
constexpr int group_heads = 16;
constexpr int groups = block_heads / group_heads;
/// Keys whose dots are differentiated together.
constexpr int part_keys = 32;
constexpr int key_stride = padded_columns<key_columns>;
// In the gradients a thread has one column: of the queries of some heads, of the keys of some of a part.
constexpr int column_threads = block_threads / key_columns;
constexpr int thread_heads = group_heads / column_threads;
constexpr int thread_keys = part_keys / column_threads;

template <class T>
struct LossArgument {
  IndexRows<T> in;
  bool sparse;
  Lists lists;        ///< if sparse
  const int* bounds;  ///< [s, 2], if not
  KernelRows rows;
  int landed_rows;
  Rows<const float> head_sums;
  double loss_scale, upstream;
  double* loss;  ///< or null, like the next three
  Rows<typename GradientOf<T>::Type> d_index_q;
  Rows<float> d_index_w;
  Rows<float> d_index_k;
  Rows<float> d_scores;  ///< of the call's rows; or null
};

struct LossMemory {
  double sums[block_warps];
  float maxima[block_warps];
};

/// What the loss of a row needs to know of all its keys.
struct RowStatistics {
  float most;    ///< score
  double lse;    ///< of the scores
  double total;  ///< of the head sums
};

template <class T, class Keys>
__device__ float score_entry(RowScorer<T>& scorer, const IndexRows<T>& in, const Keys& keys, int entry, int& landed) {
  landed = entry < keys.count() ? keys.key(entry) : -1;
  IndexKey key = {};
  if (landed >= 0) load_key(in, landed, key);
  return scorer.score(key);
}

template <class T, class Keys>
__device__ RowStatistics survey(RowScorer<T>& scorer, const IndexRows<T>& in, const Keys& keys, const float* head_sums,
                                LossMemory& memory) {
  float most = -INFINITY;
  double sum = 0;
  double total = 0;
  for (int first = 0; first < keys.count(); first += block_threads) {
    const int entry = first + static_cast<int>(threadIdx.x);
    int landed = -1;
    const float score = score_entry(scorer, in, keys, entry, landed);
    if (landed < 0) continue;
    const float now = fmaxf(most, score);
    if (now != most) sum *= exp(static_cast<double>(most) - static_cast<double>(now));
    sum += exp(static_cast<double>(score) - static_cast<double>(now));
    most = now;
    total += static_cast<double>(head_sums[entry]);
  }
  const float row_most = block_reduce(most, memory.maxima, [](float a, float b) { return fmaxf(a, b); });
  if (most != row_most) sum *= exp(static_cast<double>(most) - static_cast<double>(row_most));
  const double row_sum = block_sum(sum, memory.sums);
  return {row_most, static_cast<double>(row_most) + log(row_sum), block_sum(total, memory.sums)};
}

/// Shared memory of the gradients, behind that of the scorer.
struct GradientMemory {
  float keys[part_keys * key_stride];
  float q[group_heads * key_stride];
  float dz[group_heads * (part_keys + 1)];  ///< gradients of the dots
  float d_score[block_threads];
  int landed[block_threads];
  float scale[block_threads];  ///< of the keys, if there are any
  double dw[block_heads];
};

/// Gradients of one row and 64 heads, through score = scale sum_h w_h relu(q_h . k). Adding to d_index_k need not be
/// atomic if the block owns the keys.
template <class T, bool owned = false>
class RowGradients {
 public:
  __device__ RowGradients(const LossArgument<T>& a, std::int64_t row, int first_head, GradientMemory& memory)
      : a_(a), row_(row), first_head_(first_head), memory_(memory) {
    for (int h = static_cast<int>(threadIdx.x); h < block_heads; h += block_threads) memory_.dw[h] = 0;
  }

  /// Takes the block's keys, one of each thread; `landed` -1 for none.
  __device__ void add(int landed, float d_score, int count) {
    __syncthreads();
    memory_.landed[threadIdx.x] = landed;
    memory_.d_score[threadIdx.x] = landed >= 0 ? d_score : 0.0F;
    if constexpr (scaled<T>) memory_.scale[threadIdx.x] = landed >= 0 ? *a_.in.k_scale.at(landed) : 0.0F;
    for (int part = 0; part < count; part += part_keys) add_part(part);
  }

  __device__ void write() const {
    __syncthreads();
    if (a_.d_index_q.data != nullptr) {
#pragma unroll
      for (int i = 0; i < groups * thread_heads; ++i) {
        const int head = first_head_ + i / thread_heads * group_heads + head_of(i % thread_heads);
        if (head < a_.in.heads) narrow(dq_[i], a_.d_index_q.at(row_, head)[column()]);
      }
    }
    const int head = first_head_ + static_cast<int>(threadIdx.x);
    if (a_.d_index_w.data != nullptr && static_cast<int>(threadIdx.x) < block_heads && head < a_.in.heads) {
      a_.d_index_w.at(row_)[head] = static_cast<float>(memory_.dw[threadIdx.x]);
    }
  }

 private:
  __device__ static int column() { return static_cast<int>(threadIdx.x) % key_columns; }
  __device__ static int head_of(int i) { return static_cast<int>(threadIdx.x) / key_columns * thread_heads + i; }
  __device__ static int key_of(int i) { return static_cast<int>(threadIdx.x) / key_columns * thread_keys + i; }

  __device__ void add_part(int part) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < part_keys * key_columns; i += block_threads) {
      const int landed = memory_.landed[part + i / key_columns];
      memory_.keys[i / key_columns * key_stride + i % key_columns] =
          landed >= 0 ? widen(a_.in.k.at(landed)[i % key_columns]) : 0.0F;
    }
    float dk[thread_keys] = {};
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      const int first = first_head_ + group * group_heads;
      if (first < a_.in.heads) {
        __syncthreads();
        load_inner<key_columns>(a_.in.q, row_, first, group_heads, a_.in.heads, memory_.q);
        __syncthreads();
        differentiate_dots(part, group);
        __syncthreads();
        add_group(part, dq_ + group * thread_heads, dk);
      }
    }
    if (a_.d_index_k.data == nullptr) return;
#pragma unroll
    for (int i = 0; i < thread_keys; ++i) {
      const int landed = memory_.landed[part + key_of(i)];
      if (landed < 0) continue;
      float* const to = a_.d_index_k.at(landed) + column();
      if constexpr (owned) {
        *to += dk[i];
      } else {
        atomicAdd(to, dk[i]);
      }
    }
  }

  /// A warp has a head's dots with all keys of the part.
  __device__ void differentiate_dots(int part, int group) {
    static_assert(part_keys == 32, "a lane for each key");
    for (int h = warp(); h < group_heads; h += block_warps) {
      const int head = first_head_ + group * group_heads + h;
      const float w = head < a_.in.heads ? a_.in.w.at(row_)[head] : 0.0F;
      const float d_score = memory_.d_score[part + lane()];
      const float z = dot<key_columns>(memory_.q + h * key_stride, memory_.keys + lane() * key_stride);
      const bool open = memory_.landed[part + lane()] >= 0 && (!a_.in.relu || z > 0);
      memory_.dz[h * (part_keys + 1) + lane()] = open ? d_score * w : 0.0F;
      double dw = open ? static_cast<double>(d_score) * static_cast<double>(z) : 0.0;
      if constexpr (scaled<T>) dw *= static_cast<double>(memory_.scale[part + lane()]);
      for (int distance = 16; distance > 0; distance /= 2) dw += __shfl_xor_sync(all_lanes, dw, distance);
      if (lane() == 0) memory_.dw[group * group_heads + h] += dw;
    }
  }

  /// dz is by the dequantised keys.
  __device__ void add_group(int part, float* dq, float* dk) const {
    for (int j = 0; j < part_keys; ++j) {
      float key = memory_.keys[j * key_stride + column()];
      if constexpr (scaled<T>) key = __fmul_rn(key, memory_.scale[part + j]);
#pragma unroll
      for (int i = 0; i < thread_heads; ++i) {
        dq[i] = __fmaf_rn(memory_.dz[head_of(i) * (part_keys + 1) + j], key, dq[i]);
      }
    }
    for (int h = 0; h < group_heads; ++h) {
      const float q = memory_.q[h * key_stride + column()];
#pragma unroll
      for (int i = 0; i < thread_keys; ++i) {
        dk[i] = __fmaf_rn(memory_.dz[h * (part_keys + 1) + key_of(i)], q, dk[i]);
      }
    }
  }

  const LossArgument<T>& a_;
  const std::int64_t row_;
  const int first_head_;
  GradientMemory& memory_;
  float dq_[groups * thread_heads] = {};
};

/// In its place where only the loss is wanted.
struct NoGradients {
  template <class T>
  __device__ NoGradients(const LossArgument<T>& /*a*/, std::int64_t /*row*/, int /*first_head*/, GradientMemory&) {}
  __device__ void add(int /*landed*/, float /*d_score*/, int /*count*/) {}
  __device__ void write() const {}
};

template <class T, class Gradients, class Keys>
__device__ void run_row(const LossArgument<T>& a, std::int64_t row, const Keys& keys, LossMemory& memory) {
  auto* const shared = static_cast<float*>(dynamic_shared());
  const int first_head = static_cast<int>(blockIdx.y) * block_heads;
  RowScorer<T> scorer(a.in, row, shared);
  const float* const head_sums = a.head_sums.at(row - a.rows.first());
  const RowStatistics row_statistics = survey(scorer, a.in, keys, head_sums, memory);
  const double scale = a.loss_scale * a.upstream;
  auto& gradient_memory =
      *reinterpret_cast<GradientMemory*>(reinterpret_cast<unsigned char*>(shared) + scorer_bytes(a.in.held_heads));
  Gradients gradients(a, row, first_head, gradient_memory);
  double divergence = 0;
  for (int first = 0; first < keys.count(); first += block_threads) {
    const int entry = first + static_cast<int>(threadIdx.x);
    int landed = -1;
    const float score = score_entry(scorer, a.in, keys, entry, landed);
    double d_score = 0;
    if (landed >= 0) {
      const double target = static_cast<double>(head_sums[entry]) / fmax(row_statistics.total, least_target);
      const double log_predicted = static_cast<double>(score) - row_statistics.lse;
      if (target != 0) divergence += target * (log(fmax(target, least_target)) - log_predicted);
      d_score = (exp(log_predicted) - target) * scale;
    }
    if (a.d_scores.data != nullptr && blockIdx.y == 0 && entry < keys.count()) {
      a.d_scores.at(row - a.rows.first())[entry] = static_cast<float>(d_score);
    }
    gradients.add(landed, static_cast<float>(d_score), min(block_threads, keys.count() - first));
  }
  divergence = block_sum(divergence, memory.sums);
  if (threadIdx.x == 0 && blockIdx.y == 0 && a.loss != nullptr) a.loss[row] = divergence * a.loss_scale;
  gradients.write();
}

/// One block for each row; with gradients also for each 64 heads of it.
template <class T, class Gradients>
__global__ void __launch_bounds__(block_threads) differentiate_loss(LossArgument<T> a) {
  __shared__ LossMemory memory;
  __shared__ ListKeys::Memory list_memory;
  a.rows.for_each([&](std::int64_t row) {
    if (a.sparse) {
      const ListKeys keys(a.lists, row, list_memory, dynamic_shared());
      run_row<T, Gradients>(a, row, keys, memory);
    } else {
      run_row<T, Gradients>(a, row, RangeKeys{a.bounds[2 * row], a.bounds[2 * row + 1]}, memory);
    }
  });
}

template <class T, class Keys>
__device__ void add_row_in_order(const LossArgument<T>& a, std::int64_t row, const Keys& keys, GradientMemory& memory) {
  const float* const d_scores = a.d_scores.at(row - a.rows.first());
  for (int first_head = 0; first_head < a.in.heads; first_head += block_heads) {
    RowGradients<T, true> gradients(a, row, first_head, memory);
    for (int first = 0; first < keys.count(); first += block_threads) {
      const int i = first + static_cast<int>(threadIdx.x);
      const bool there = i < keys.count();
      gradients.add(there ? keys.key(i) : -1, there ? d_scores[keys.entry(i)] : 0.0F,
                    min(block_threads, keys.count() - first));
    }
    __syncthreads();
  }
}

/// What all rows add to the d_index_k of the keys that the block owns, by the gradients of their scores, in the order
/// of rows and of 64 heads.
template <class T>
__global__ void __launch_bounds__(block_threads) add_in_order(LossArgument<T> a) {
  __shared__ ListKeys::Memory list_memory;
  __shared__ int count;
  auto& memory = *static_cast<GradientMemory*>(dynamic_shared());
  auto* const entries = reinterpret_cast<std::uint16_t*>(&memory + 1);
  const OwnedKeys own = owned_keys(a.landed_rows);
  a.rows.for_each_in_order([&](std::int64_t row) {
    if (a.sparse) {
      const ListKeys list(a.lists, row, list_memory, &memory);
      add_row_in_order(a, row, choose(list, own, entries, count), memory);
    } else {
      add_row_in_order(a, row, choose(RangeKeys{a.bounds[2 * row], a.bounds[2 * row + 1]}, own), memory);
    }
  });
}

const bool registered = register_kernel(add_in_order<float>) && register_kernel(add_in_order<Bf16>) &&
                        register_kernel(add_in_order<E4m3>) &&
                        register_kernel(differentiate_loss<float, NoGradients>) &&
                        register_kernel(differentiate_loss<float, RowGradients<float>>) &&
                        register_kernel(differentiate_loss<Bf16, NoGradients>) &&
                        register_kernel(differentiate_loss<Bf16, RowGradients<Bf16>>) &&
                        register_kernel(differentiate_loss<E4m3, NoGradients>) &&
                        register_kernel(differentiate_loss<E4m3, RowGradients<E4m3>>);

template <class T>
void run(const NativeStream& stream, const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
         ListFault* fault, const ChosenRows* only, const Tensor& d_scores) {
  constexpr int most_held = 64;
  LossArgument<T> a{};
  a.in = index_rows<T>(in, most_held);
  a.sparse = support.sparse();
  std::size_t shared = scorer_bytes(a.in.held_heads);
  if (a.sparse) {
    a.lists = lists_of(support.indices, support.length, in.index_k.size(0), fault);
  } else {
    a.bounds = in.bounds.data_as<const int>();
  }
  a.rows = KernelRows(loss.rows, only);
  a.landed_rows = static_cast<int>(in.index_k.size(0));
  a.head_sums = rows_of<const float>(loss.head_sums);
  a.loss_scale = loss.loss_scale;
  a.upstream = loss.upstream;
  a.loss = loss.loss.data_as<double>();
  a.d_index_q = rows_of<typename GradientOf<T>::Type>(loss.d_index_q);
  a.d_index_w = rows_of<float>(loss.d_index_w);
  a.d_index_k = rows_of<float>(loss.d_index_k);
  const bool ordered = d_scores.valid() && loss.d_index_k.valid();
  if (ordered) a.d_scores = rows_of<float>(d_scores);
  LossArgument<T> by_row = a;
  if (ordered) by_row.d_index_k = {};
  const bool gradients = loss.d_index_q.valid() || loss.d_index_w.valid() || loss.d_index_k.valid();
  if (gradients) shared += sizeof(GradientMemory);
  if (a.sparse) shared = std::max(shared, list_bytes(support.indices.size(1)));
  const std::int64_t layers = gradients ? (a.in.heads + block_heads - 1) / block_heads : 1;
  launch(stream, gradients ? differentiate_loss<T, RowGradients<T>> : differentiate_loss<T, NoGradients>, by_row,
         a.rows.blocks(layers), layers, shared);
  if (!ordered || loss.rows.empty()) return;
  std::size_t memory = sizeof(GradientMemory);
  if (a.sparse) {
    // Lists are sorted in the same memory, before entries of theirs are chosen.
    memory = std::max(memory + owned_bytes(support.indices.size(1)), list_bytes(support.indices.size(1)));
  }
  launch(stream, add_in_order<T>, a, ordered_blocks, 1, memory);
}

}  // namespace

void indexer_loss(const NativeStream& stream, const IndexerInputs& in, const LossSupport& support,
                  const IndexerLoss& loss, ListFault* fault, const ChosenRows* only, const Tensor& d_scores) {
  switch (in.index_q.dtype()) {
    case DType::f8e4m3:
      return run<E4m3>(stream, in, support, loss, fault, only, d_scores);
    case DType::bf16:
      return run<Bf16>(stream, in, support, loss, fault, only, d_scores);
    default:
      return run<float>(stream, in, support, loss, fault, only, d_scores);
  }
}

}  // namespace tandem::detail::cuda::generic

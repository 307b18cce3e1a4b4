// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/device.hpp"
#include "tandem/plan.hpp"
#include "tandem/tensor.hpp"

/// The compute of DeepSeek Sparse Attention, as an interface: `cpu` is its specification, others may be registered with
/// an operator instead. Kernels know nothing of ranks: they work on local query rows and landed key rows, by landed-row
/// ids.
///
/// Every call validates its arguments at once (invalid_argument names the tensor and what is wrong), enqueues on
/// `stream` and returns; tensors and spans must live until that work has run. dtype T below is bf16 or f32, the same
/// for all of a call; the indexer's inputs may also be f8e4m3.
namespace tandem {

constexpr std::int64_t index_dim = 128;  ///< width of indexer queries and keys
constexpr std::int64_t value_dim = 512;  ///< leading columns of a KV row that are its value

/// score[t,j] = sum_h index_w[t,h] * relu(index_q[t,h] . index_k[j]), fp32; relu is optional. Within one kernel set a
/// score is a pure function of its two rows: the same bits whatever else is computed in the call.
///
/// With T = f8e4m3: score[t,j] = index_k_scale[j] * sum_h index_w[t,h] * relu(index_q[t,h] . index_k[j]), by the values
/// of the codes; one product in fp32, after the sum. A scale for each row and head of queries belongs into index_w.
struct IndexerInputs {
  Tensor index_q;                           ///< T [s, Hi, 128]
  Tensor index_w;                           ///< f32 [s, Hi]
  Tensor index_k;                           ///< T [n, 128], landed rows
  std::span<const std::int64_t> key_begin;  ///< s entries: row t sees landed rows [key_begin[t], key_end[t])
  std::span<const std::int64_t> key_end;
  std::int64_t topk = 0;
  bool relu = true;
  /// The same bounds for kernels of a GPU, which cannot read spans of the host: i32 [s, 2], begin and end of each row.
  /// Device memory, dense, like the next two. The cpu kernels ignore all three.
  Tensor bounds = {};
  /// Of indexer_topk: i32 [rows of the step], the local rows of step.rows one by one.
  Tensor step_rows = {};
  /// Of indexer_topk: i32 [ranges, 2], begin and end of each of step.keys.
  Tensor step_keys = {};
  /// f32 [n], or [n, 1] as a gather lands it. Given if and only if T is f8e4m3.
  Tensor index_k_scale = {};
};

/// Lists of selected keys. Total order: score descending, then landed row ascending; -0 equals +0; NaN is never
/// selected; a row that sees at most K keys takes them all without scoring. Entries beyond a row's length are -1.
struct TopkLists {
  Tensor indices;    ///< i32 [s, K], landed rows, ascending
  Tensor length;     ///< i32 [s]
  Tensor nan_count;  ///< i64 [1]: keys that scored NaN are added to it
};

/// Top-k state of rows between indexer steps: bounded by carry_rows x K entries.
struct TopkState {
  Tensor scores;   ///< f32 [rows, K]
  Tensor indices;  ///< i32 [rows, K]
  Tensor length;   ///< i32 [rows]
};

/// Scores that were computed elsewhere, for a selection alone.
struct ScoreMatrix {
  Tensor scores;                            ///< f32 [s, n]; those of keys that a row does not see are not looked at
  std::span<const std::int64_t> key_begin;  ///< s entries each, as in IndexerInputs
  std::span<const std::int64_t> key_end;
  std::int64_t topk = 0;
  Tensor bounds = {};  ///< for kernels of a GPU, as in IndexerInputs
};

struct AttentionInputs {
  Tensor q;   ///< T [s, H, d], d = 576 or 512
  Tensor kv;  ///< T [n, d], landed rows; columns [0, 512) are the value
  /// i32 [s, K] landed rows, any order, duplicates count once, negative entries and those beyond length are ignored. A
  /// length outside 0..K or an entry that is no landed row fails the stream's task (invalid_argument). A GPU, which has
  /// no tasks, takes such a length for 0, ignores such an entry, and has KernelSet::throw_if_failed tell.
  Tensor indices;
  Tensor length;  ///< i32 [s]
  /// f32 [H], or empty: a logit that takes part in the softmax of a head with value 0 (natural-log units, unscaled).
  Tensor sink;
  float scale = 1.0F;
  /// A promise that up to its length, which is within 0..K, each list holds distinct landed rows in ascending order and
  /// nothing else. Kernels then need not look; what a broken one does is undefined.
  bool plain_lists = false;
};

/// P = softmax over selected keys (and sink) of scale * q . kv;  out = P . kv[:, :512];  lse = ln(sum of exponentials,
/// sink included). A row of length 0: out 0; lse -inf, or the sink's logit if there is one.
struct AttentionOutputs {
  Tensor out;  ///< T [s, H, 512]
  Tensor lse;  ///< f32 [s, H], natural logarithm
  /// f32 [s, K], or empty: receives sum over heads of P, entry by entry of `indices` (0 beyond length and for
  /// duplicates).
  Tensor head_sums;
};

/// For local rows `rows`: delta = sum(out * dout); dP = dout . v; dS = P (dP - delta) scale; dq = dS . kv; and added
/// into the landed rows: dkv += dS^T q, dkv[:, :512] += P^T dout; dsink[h] -= sum_t P_sink delta.
struct AttentionGradients {
  Tensor dout;   ///< T [s, H, 512]
  Tensor out;    ///< of the forward
  Tensor lse;    ///< of the forward
  Tensor dq;     ///< T [s, H, d], rows of `rows` are written
  Tensor dkv;    ///< f32 [n, d], added to
  Tensor dsink;  ///< f32 [H] or empty, added to
  /// f32 [rows.size(), K], or empty: receives the sums over heads of P, as AttentionOutputs::head_sums of these rows.
  /// Costs next to nothing here, where P is at hand.
  Tensor head_sums = {};
};

/// Which keys the indexer loss of a row runs over.
struct LossSupport {
  /// Sparse: the selected keys. Both empty in dense warm-up: then all that the row sees, by the bounds of
  /// IndexerInputs.
  Tensor indices;            ///< i32 [s, K], distinct, ascending
  Tensor length;             ///< i32 [s]
  bool plain_lists = false;  ///< as of AttentionInputs
  bool sparse() const noexcept { return indices.valid(); }
};

/// L = sum_t KL(target_t || softmax(score_t)) * loss_scale, with target_t = head_sums_t / max(sum of it, 1e-10),
/// detached; log of the target clamped at 1e-10. Gradient of a score: (softmax(score) - target) * loss_scale *
/// upstream, then through the formula of the score (relu' (0) = 0). Reference: Megatron-Core's DSA indexer loss.
///
/// With f8e4m3 inputs gradients pass straight through the rounding: d_index_k is that of the dequantised key,
/// index_k_scale[j] * index_k[j]; d_index_q is that of the codes' values, so of queries whose scale is folded into
/// index_w it is the gradient times that scale, which also belongs to d_index_w.
struct IndexerLoss {
  RowRange rows;  ///< local rows of this call
  /// f32 [rows.size(), W]: sums over heads of attention probabilities; entry i is that of the support's i-th key
  /// (sparse: i-th entry of indices; dense: landed row key_begin + i).
  Tensor head_sums;
  double loss_scale = 1.0;  ///< usually 1 / real rows of the whole batch
  double upstream = 1.0;    ///< gradient of the caller's loss by L
  Tensor loss;              ///< f64 [s]: L of each row is written; or empty
  Tensor d_index_q;         ///< T [s, Hi, 128], f32 if T is f8e4m3, rows are written; or empty
  Tensor d_index_w;         ///< f32 [s, Hi], rows are written; or empty
  Tensor d_index_k;         ///< f32 [n, 128], added to; or empty
};

/// Rows that the device works on at the same time. Of a call with fewer rows, or with some more than a multiple, part
/// of the device has nothing to do for a while.
struct ConcurrentRows {
  std::int64_t indexer = 1;
  std::int64_t backward = 1;
};

class TANDEM_EXPORT KernelSet {
 public:
  virtual ~KernelSet() = default;
  virtual std::string name() const = 0;
  /// Changes whenever any result may change by a bit; part of the fingerprint that ranks compare.
  virtual std::uint32_t numerics_version() const = 0;
  /// Whether gradients that rows add up (dkv, dsink, d_index_k) have the same bits in every run.
  virtual bool deterministic() const { return true; }
  /// Throws what enqueued work found wrong with its inputs and had no other way to say (invalid_argument, naming the
  /// row), once. Complete when the streams are synchronized; every call of a GPU's kernels begins with it.
  virtual void throw_if_failed() {}
  /// Bytes of device memory that this set holds beside the arguments of its calls, now.
  virtual std::uint64_t scratch_bytes() const { return 0; }
  /// With so many heads of attention and of the indexer.
  virtual ConcurrentRows concurrent_rows(std::int64_t /*heads*/, std::int64_t /*index_heads*/) const { return {}; }

  /// One step of the plan: rows of `step.rows` look at `step.keys`. Carried rows are numbered in the order of
  /// step.rows. If step.first their state starts empty, else it continues; if step.last their lists are written, else
  /// `state` keeps them.
  virtual void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                            const TopkLists& out, const Stream& stream) = 0;
  /// The lists of all rows from given scores: what indexer_topk selects with, by itself. For tests and benchmarks; the
  /// operator does not call it. Throws unsupported unless the set has one.
  virtual void select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream);
  virtual void sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) = 0;
  /// Deterministic on the host whatever the thread count.
  virtual void sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                                   const Stream& stream) = 0;
  /// Dense warm-up: head_sums [rows.size(), W] of softmax over all keys that a row sees (and the sink), W >= most keys;
  /// 0 beyond them. Of `bounds` only key_begin and key_end are used, of `in` not the lists.
  virtual void dense_head_sums(RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in,
                               const Tensor& head_sums, const Stream& stream) = 0;
  virtual void indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                            const Stream& stream) = 0;
};

struct CpuKernelOptions {
  /// Threads of a call; 0: TANDEM_THREADS if set, else the cores of this process divided by the ranks on this host.
  int threads = 0;
};
/// The specification. Results do not depend on the number of threads, nor on the order or repetitions of a row's list:
/// keys are always visited in ascending order. They do depend on the processor's instruction set, which
/// numerics_version() tells apart. Scratch of a call: per thread a tile of rows and keys, and 16 MiB for the backward
/// or the loss, more only if that does not hold two rows a thread.
TANDEM_EXPORT std::shared_ptr<KernelSet> cpu_kernels(const CpuKernelOptions& options = {});

enum class CudaKernels {
  best,  ///< sm90 where it runs, else generic
  /// "cuda.generic": correct on every GPU that the library's kernels were built for, and not tuned for any. Needs no
  /// memory beside its arguments, but for a deterministic loss, which takes 4 bytes for each row and key of a call.
  generic,
  /// "cuda.sm90", for Hopper alone: selects keys for bf16 and f8e4m3 inputs of 8, 16, 32 or 64 index heads, has their
  /// sparse indexer loss with gradients, and attends in bf16, forward and, with up to 128 heads, backward, with K a
  /// multiple of 64; all else, and rows whose lists are not distinct and ascending, is the work of cuda.generic. Scores
  /// of the loss may differ from those of the selection by rounding. Holds scratch for each stream that it is used on
  /// (scratch_bytes): at most 0.5 GB for the indexer and 1 GB for the backward, 3 GB if that is deterministic; inputs
  /// of the indexer that are not dense, or not aligned to 16 bytes, are copied first, into more of it.
  sm90,
};
struct CudaKernelOptions {
  CudaKernels which = CudaKernels::best;
  /// Rows add to dkv, dsink and d_index_k in a fixed order instead of by atomics. Gradients then have the same bits in
  /// every run of the same calls. Of cuda.sm90 this costs memory and some time in the backward of the attention; the
  /// gradients of the indexer loss, and all of cuda.generic, take several times as long.
  bool deterministic = false;
};
/// K is at most 8192. What is enqueued can be captured in a CUDA graph. Forward results have the same bits in every
/// run. Throws unsupported, with the reason, for a device of the host, for a GPU that the kernels are not for, and in a
/// build without them.
TANDEM_EXPORT std::shared_ptr<KernelSet> cuda_kernels(const Device& device, const CudaKernelOptions& options = {});

}  // namespace tandem

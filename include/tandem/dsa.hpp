// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tandem/communicator.hpp"
#include "tandem/kernels.hpp"

/// The operator: context-parallel DeepSeek Sparse Attention, forward and backward. The only place where communication
/// and kernels meet.
namespace tandem {

enum class IndexerLossKind {
  none,
  sparse,  ///< over the selected keys
  dense,   ///< over all visible keys: warm-up
};

/// Which pass computes the indexer loss and, of a sparse one, the sums of attention probabilities over heads.
enum class LossPass {
  /// The loss comes with the forward's outputs. The sums are computed there, for which the keys are gone through once
  /// more (on a GPU by kernels that are not tuned), and kept until backward: 4 s K bytes.
  forward,
  /// The loss comes with the gradients, and the backward of the attention gives the sums, which it has at hand.
  backward,
};

struct DsaConfig {
  std::int64_t heads = 128;
  std::int64_t index_heads = 64;
  std::int64_t dim = 576;
  std::int64_t topk = 2048;
  float scale = 0.0F;  ///< of q . kv; 0 means dim^-0.5
  bool relu = true;    ///< in the indexer's score
  DType dtype = DType::bf16;
  /// Of index_q and index_k: f32, bf16, or f8e4m3, whose keys have scales and travel with them (132 instead of 256
  /// bytes a token). Empty means dtype.
  std::optional<DType> index_dtype;
  /// How contributions to dkv and d_index_k travel; they are added in fp32 either way.
  DType wire = DType::f32;
  bool deterministic = false;  ///< equal bits from run to run; unsupported if the kernel set is not
  IndexerLossKind loss = IndexerLossKind::none;
  LossPass loss_pass = LossPass::backward;
  /// Keep landed rows until backward, or gather them again there.
  bool keep_landed = true;
  /// Runs on the unnormalised head sums f32 [rows, W] before the loss uses them, enqueued on the stream: where a
  /// trainer adds those of its tensor-parallel ranks. May be empty.
  std::function<void(const Tensor& head_sums, const Stream& stream)> target_hook;
};

struct DsaInputs {
  Tensor q;        ///< T [s, H, d]
  Tensor kv;       ///< T [s, d]
  Tensor index_q;  ///< index_dtype [s, Hi, 128]; empty if `indices` is given
  Tensor index_k;  ///< index_dtype [s, 128]
  Tensor index_w;  ///< f32 [s, Hi], scaling included; with f8e4m3 also that of each row and head of index_q
  Tensor sink;     ///< f32 [H] or empty
  /// Lists of the caller instead of the indexer's: i32 [s, K] global positions, any order, -1 ignored, duplicates count
  /// once; positions that the row does not see are ignored.
  Tensor indices;
  /// f32 [s], of the rows of an f8e4m3 index_k: see IndexerInputs. Empty with other types.
  Tensor index_k_scale;
};

struct DsaOutputs {
  Tensor out;      ///< T [s, H, 512]
  Tensor lse;      ///< f32 [s, H], natural logarithm
  Tensor indices;  ///< i32 [s, K] global positions, ascending, -1 beyond length
  Tensor length;   ///< i32 [s]
  /// f64 [s], this rank's terms, already divided by the rows of the batch that ask; empty without a loss in this pass.
  Tensor loss;
  Tensor nan_count;  ///< i64 [1]: keys whose score was NaN
};

struct DsaGradients {
  Tensor dq;   ///< T [s, H, d]
  Tensor dkv;  ///< f32 [s, d], summed over ranks
  /// index_dtype [s, Hi, 128]; f32, straight through the rounding, if that is f8e4m3: see IndexerLoss. Empty without
  /// loss, like the next two.
  Tensor d_index_q;
  Tensor d_index_k;  ///< f32 [s, 128], summed over ranks
  Tensor d_index_w;  ///< f32 [s, Hi]
  Tensor dsink;      ///< f32 [H], of this rank's rows; empty without sink
  Tensor loss;       ///< as that of DsaOutputs, if it is computed in this pass
};

/// What forward keeps for backward. Movable; destroying it gives the landed rows back once the streams are past them.
class TANDEM_EXPORT DsaContext {
 public:
  struct Data;
  DsaContext() = default;
  explicit DsaContext(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  bool valid() const noexcept { return data_ != nullptr; }
  const std::shared_ptr<Data>& data() const noexcept { return data_; }
  /// Bytes of tensors that only this context keeps alive.
  std::uint64_t bytes() const;

 private:
  std::shared_ptr<Data> data_;
};

/// The bill of one forward and backward, in bytes per rank of device memory: all but `saved` add up to the most that is
/// allocated at once, on a GPU unless batches of other shapes came before, whose memory stays for more of them. Kernels
/// have scratch of their own beside it (KernelSet::scratch_bytes).
struct DsaMemory {
  std::uint64_t inputs = 0;
  std::uint64_t outputs = 0;
  std::uint64_t landed = 0;   ///< both landing slots, and kept rows
  std::uint64_t scratch = 0;  ///< lists by landed row, top-k state, head sums, loss tiles
  std::uint64_t gradients = 0;
  std::uint64_t accumulators = 0;  ///< fp32 over landed rows
  std::uint64_t staging = 0;       ///< both slots of contributions, coming and going
  std::uint64_t tables = 0;        ///< of rows, for kernels: of stream-ordered communicators, and of a plan on GPUs
  std::uint64_t saved = 0;         ///< of the above, what the context keeps until backward beside the outputs

  std::uint64_t total() const noexcept {
    return inputs + outputs + landed + scratch + gradients + accumulators + staging + tables;
  }
};

/// One attention layer's worth of context-parallel DSA. One thread at a time, same order of calls on all ranks. `comm`
/// must outlive it.
///
/// On a GPU forward and backward enqueue kernels, copies and waits alone, so that they can be captured in a CUDA graph
/// once the plan is prepared, if the transport can be. A graph reads and writes the tensors that were given and
/// returned when it was captured: keep them, the context and this object for as long as it is replayed. Calls keep some
/// memory for the next one on the same stream, so give as few streams as possible. Memory of outputs, contexts and
/// gradients that you let go of is given out again by later calls on their stream, at once: hold on to what another
/// stream reads until it has read it.
class TANDEM_EXPORT DsaAttention {
 public:
  DsaAttention(Communicator& comm, std::shared_ptr<KernelSet> kernels, const DsaConfig& config);
  ~DsaAttention();
  DsaAttention(DsaAttention&&) noexcept;

  /// `options` with carry_rows and block_rows such that the kernels use all of the device: the next multiples of what
  /// works at the same time. Ranks have to use the same, which is what they get on devices of the same model.
  PlanOptions plan_options(PlanOptions options = {}) const;
  /// Collective, blocks, once per batch shape. See Communicator::prepare.
  void prepare(const Plan& plan);

  struct Forward {
    DsaOutputs outputs;
    DsaContext context;
    Work gather;  ///< status, bytes and timing of the communication
  };
  /// Enqueues on `stream`; outputs are ready when the stream gets there. Throws invalid_argument (shape, dtype),
  /// invalid_usage (plan not prepared) and the communicator's errors.
  Forward forward(const Plan& plan, const DsaInputs& inputs, const Stream& stream);

  /// What rows sum up over ranks, dkv and d_index_k, is there for a stream once it has waited for `reduce`; on a GPU
  /// the stream of the call has. The other gradients are ready when that stream gets there.
  struct Backward {
    DsaGradients gradients;
    Work reduce;
  };
  /// `dout` T [s, H, 512]; `dloss` the gradient of the caller's loss by the indexer loss. Inputs must be unchanged
  /// since forward. May run once per context.
  Backward backward(const DsaContext& context, const DsaInputs& inputs, const Tensor& dout, double dloss,
                    const Stream& stream);
  /// With keep_landed = false: starts gathering the rows of `context` again, so that backward finds them here.
  void prefetch(const DsaContext& context, const DsaInputs& inputs, const Stream& stream);

  /// Blocks until the work given to `stream` is done. Throws timeout, device, and what the kernels found wrong with
  /// their inputs and could not say otherwise (KernelSet::throw_if_failed): invalid_argument, naming the row.
  void synchronize(const Stream& stream, Deadline deadline);

  DsaMemory memory(const Plan& plan) const;
  const DsaConfig& config() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

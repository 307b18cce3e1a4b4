// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/impl.hpp"
#include "device/stream_memory.hpp"
#include "device/temporaries.hpp"
#include "dsa/plan_tables.hpp"
#include "dsa/side_stream.hpp"
#include "tandem/dsa.hpp"

namespace tandem {

/// What forward leaves for backward. Lists are in landed rows.
struct DsaContext::Data {
  Plan plan;
  Tensor indices;        ///< i32 [s, K], ascending
  Tensor length;         ///< i32 [s]
  Tensor out;            ///< shared with the outputs
  Tensor lse;            ///< shared with the outputs
  Tensor head_sums;      ///< f32 [s, K]; sparse loss in the forward pass only
  Tensor kv;             ///< landed; empty if it is gathered again
  Tensor index_k;        ///< landed; only with a loss
  Tensor index_k_scale;  ///< landed; only with a loss and f8e4m3
  bool given_lists = false;
  Work prefetched;  ///< of prefetch()
  bool used = false;

  explicit Data(const Plan& p) : plan(p) {}
};

namespace detail {

/// What of the landed rows the indexer reads.
struct IndexKeys {
  Tensor k;
  Tensor scale;  ///< only with f8e4m3
};

/// Holds what enqueued work refers to until the stream is past it, also when enqueueing ends in an exception. A GPU
/// needs nothing of the kind: freeing its memory waits for its work, and what StreamMemory takes back is given out for
/// later work of the same stream alone.
class KeepAlive {
 public:
  KeepAlive(const Stream& stream, const Plan& plan) : stream_(stream), plan_(plan) {}
  ~KeepAlive();
  KeepAlive(const KeepAlive&) = delete;
  KeepAlive& operator=(const KeepAlive&) = delete;
  void add(std::shared_ptr<const void> thing) { things_.push_back(std::move(thing)); }

 private:
  Stream stream_;
  Plan plan_;
  std::vector<std::shared_ptr<const void>> things_;
};

/// Global positions -> landed lists: drops -1 and what the row does not see, sorts, removes duplicates. At once, on the
/// host.
void to_landed_lists(const Plan& plan, const Tensor& global, const Tensor& indices, const Tensor& length);
/// Landed lists -> global positions, ascending, -1 beyond the length. At once, on the host.
void to_global_lists(const Plan& plan, const Tensor& indices, const Tensor& length, const Tensor& global);

void check_tensor(const char* name, const Tensor& tensor, DType dtype, std::initializer_list<std::int64_t> shape);
void zero_on(const Stream& stream, const Tensor& tensor);
/// Zeroes what no block of queries writes. Tensors have a row for each local row; those that are not valid are left
/// out.
void zero_silent_rows(const Stream& stream, const Plan& plan, std::initializer_list<Tensor> tensors);

}  // namespace detail

/// Extents of the tile that the dense loss works in.
std::int64_t loss_block_rows(const Plan& plan);
std::int64_t most_visible_keys(const Plan& plan);

struct DsaAttention::Impl {
  Communicator* comm;
  std::shared_ptr<KernelSet> kernels;
  DsaConfig config;
  std::map<std::uint64_t, detail::PlanTables> tables = {};  ///< of prepared plans, by hash; GPUs only
  detail::Temporaries temporaries = {};
  detail::StreamMemory results;
  detail::SideStream side = {};  ///< GPUs only, once a plan has rows that keep their state

  BatchSpec batch_spec() const;
  void prepare(const Plan& plan);
  void check_inputs(const Plan& plan, const DsaInputs& in) const;
  Forward forward(const Plan& plan, const DsaInputs& in, const Stream& stream);
  Backward backward(DsaContext::Data& context, const DsaInputs& in, const Tensor& dout, double dloss,
                    const Stream& stream);
  Work gather_again(DsaContext::Data& context, const DsaInputs& in, const Stream& stream);
  DsaMemory memory(const Plan& plan) const;

  /// Of index_q and index_k.
  DType index_dtype() const { return config.index_dtype.value_or(config.dtype); }
  DType index_gradient_dtype() const { return scaled_keys() ? DType::f32 : index_dtype(); }
  bool scaled_keys() const { return index_dtype() == DType::f8e4m3; }
  bool has_loss() const noexcept { return config.loss != IndexerLossKind::none; }
  bool has_loss_in(LossPass pass) const noexcept { return has_loss() && config.loss_pass == pass; }
  bool has_sparse_loss_in(LossPass pass) const noexcept {
    return config.loss == IndexerLossKind::sparse && config.loss_pass == pass;
  }
  bool on_gpu() const noexcept { return comm->device().kind() == DeviceKind::cuda; }
  /// Throws invalid_usage if the plan was not prepared.
  const detail::PlanTables& tables_of(const Plan& plan) const;
  /// Enqueues the conversion of lists.
  void to_landed(const Plan& plan, const Tensor& global, const Tensor& indices, const Tensor& length,
                 const Stream& stream) const;
  void to_global(const Plan& plan, const Tensor& indices, const Tensor& length, const Tensor& global,
                 const Stream& stream) const;
  double loss_scale(const Plan& plan) const;
  IndexerInputs indexer_inputs(const Plan& plan, const DsaInputs& in, const detail::IndexKeys& keys) const;
  /// Of the indexer's keys, in the order in which they travel.
  std::vector<std::string> index_fields() const;
  detail::IndexKeys index_keys(const Work& gather) const;
  AttentionInputs attention_inputs(const DsaInputs& in, const Tensor& kv, const Tensor& indices,
                                   const Tensor& length) const;
  void select(const Plan& plan, const DsaInputs& in, const Work& gather, const TopkLists& lists, const Stream& stream,
              detail::KeepAlive& keep);
  /// What the loss of a context's rows is computed from.
  struct LossInputs {
    Tensor kv;
    detail::IndexKeys keys;
    Tensor head_sums;  ///< f32 [s, K] of a sparse loss
  };
  /// Runs the loss over rows in blocks with or without gradients; `after(block)` follows each block.
  void run_loss(const DsaContext::Data& context, const DsaInputs& in, const LossInputs& from, IndexerLoss loss,
                const Stream& stream, const std::function<void(std::size_t)>& after);
  /// For what work of `stream` fills and the caller gets, or backward.
  Tensor allocate(const Stream& stream, DType dtype, std::initializer_list<std::int64_t> shape);

  /// Enqueues `work`, with a compute span around what it enqueues.
  template <class F>
  void compute(const Stream& stream, const std::string& name, F&& work) {
    const std::shared_ptr<Trace>& trace = comm->trace();
    // The tasks that take the times run once; a graph would run them again.
    if (!trace || stream.impl().capture() != 0) {
      work();
      return;
    }
    auto begin = std::make_shared<std::int64_t>(0);
    stream.run([begin] { *begin = now_ns(); });
    work();
    stream.run([trace, begin, name, track = stream.name()] {
      trace->add({SpanKind::compute, name, track, *begin, now_ns(), 0, ""});
    });
  }
};

}  // namespace tandem

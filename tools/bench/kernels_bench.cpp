// SPDX-License-Identifier: Apache-2.0
// Rates of the cpu kernels on one causal document of random rows. Floating-point operations are those of the formulas
// in tandem/kernels.hpp: two for each multiply-add of a dot product or a weighted sum over keys, nothing else.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device/bf16.hpp"
#include "tandem/deadline.hpp"
#include "tandem/kernels.hpp"

namespace {

using namespace tandem;
using Clock = std::chrono::steady_clock;

struct Options {
  std::int64_t tokens = 4096, heads = 4, index_heads = 2, topk = 64, dim = 576;
  std::string dtype = "fp32";
  int threads = 0, repeats = 5;
};

class Bench {
 public:
  explicit Bench(const Options& options) : o_(options) {
    const auto type = o_.dtype == "bf16" ? DType::bf16 : DType::f32;
    q_ = random(type, {o_.tokens, o_.heads, o_.dim});
    kv_ = random(type, {o_.tokens, o_.dim});
    dout_ = random(type, {o_.tokens, o_.heads, value_dim});
    index_q_ = random(type, {o_.tokens, o_.index_heads, index_dim});
    index_k_ = random(type, {o_.tokens, index_dim});
    index_w_ = random(DType::f32, {o_.tokens, o_.index_heads});
    out_ = Tensor::allocate(device_, type, {o_.tokens, o_.heads, value_dim});
    dq_ = Tensor::allocate(device_, type, {o_.tokens, o_.heads, o_.dim});
    lse_ = Tensor::allocate(device_, DType::f32, {o_.tokens, o_.heads});
    head_sums_ = Tensor::allocate(device_, DType::f32, {o_.tokens, o_.topk});
    dkv_ = random(DType::f32, {o_.tokens, o_.dim});
    d_index_q_ = Tensor::allocate(device_, type, {o_.tokens, o_.index_heads, index_dim});
    d_index_w_ = Tensor::allocate(device_, DType::f32, {o_.tokens, o_.index_heads});
    d_index_k_ = random(DType::f32, {o_.tokens, index_dim});
    lists_ = {Tensor::allocate(device_, DType::i32, {o_.tokens, o_.topk}),
              Tensor::allocate(device_, DType::i32, {o_.tokens}), Tensor::allocate(device_, DType::i64, {1})};
    std::memset(lists_.nan_count.data(), 0, sizeof(std::int64_t));
    begin_.assign(static_cast<std::size_t>(o_.tokens), 0);
    for (std::int64_t t = 0; t < o_.tokens; ++t) end_.push_back(t + 1);
  }

  void run() {
    const auto tokens = static_cast<double>(o_.tokens), heads = static_cast<double>(o_.heads);
    const double selected = pairs_up_to(o_.topk);
    // Rows that take all they see are not scored.
    const double scored = pairs_up_to(o_.tokens) - pairs_up_to(std::min(o_.topk, o_.tokens), o_.topk);
    const auto dim = static_cast<double>(o_.dim), values = static_cast<double>(value_dim);
    const double index = static_cast<double>(o_.index_heads) * static_cast<double>(index_dim);
    fmt::print("{} tokens, H {}, Hi {}, d {}, K {}, {}; {:.3g} keys a row\n", o_.tokens, o_.heads, o_.index_heads,
               o_.dim, o_.topk, o_.dtype, selected / tokens);
    fmt::print("{:<22} {:>10} {:>10} {:>10}\n", "kernel", "ms", "GFLOP", "GFLOP/s");
    const IndexerInputs indexer{index_q_, index_w_, index_k_, begin_, end_, o_.topk, true};
    const IndexerStep step{{{0, o_.tokens}}, {{0, o_.tokens}}, {}, true, true};
    const AttentionInputs attention{q_, kv_, lists_.indices, lists_.length, {}, 1.0F / 24};
    time("indexer_topk", 2 * scored * index, [&] { kernels_->indexer_topk(step, indexer, {}, lists_, stream_); });
    time("sparse_mla_forward", 2 * selected * heads * (dim + values), [&] {
      kernels_->sparse_mla_forward(attention, {out_, lse_, head_sums_}, stream_);
    });
    // S again, dP, then dkv from both and dq.
    time("sparse_mla_backward", 2 * selected * heads * (3 * dim + 2 * values), [&] {
      kernels_->sparse_mla_backward({0, o_.tokens}, attention, {dout_, out_, lse_, dq_, dkv_, {}}, stream_);
    });
    time("indexer_loss", 2 * selected * index * 3, [&] {
      kernels_->indexer_loss(indexer, {lists_.indices, lists_.length},
                             {{0, o_.tokens}, head_sums_, 1 / tokens, 1, {}, d_index_q_, d_index_w_, d_index_k_},
                             stream_);
    });
  }

 private:
  Tensor random(DType type, std::initializer_list<std::int64_t> shape) {
    Tensor t = Tensor::allocate(device_, type, shape);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      const float value = normal(rng_);
      if (type == DType::f32) t.data_as<float>()[i] = value;
      if (type == DType::bf16) t.data_as<std::uint16_t>()[i] = detail::bf16_from_float(value);
    }
    return t;
  }

  /// Row-key pairs of a causal document's first `rows` rows (all unless given), where a row takes at most `most` keys.
  double pairs_up_to(std::int64_t most, std::int64_t rows = -1) const {
    double pairs = 0;
    for (std::int64_t t = 0; t < (rows < 0 ? o_.tokens : std::min(rows, o_.tokens)); ++t)
      pairs += static_cast<double>(std::min(t + 1, most));
    return pairs;
  }

  void time(const char* name, double operations, const std::function<void()>& call) {
    std::vector<double> ms;
    for (int i = -1; i < o_.repeats; ++i) {  // the first touches the memory
      const auto before = Clock::now();
      call();
      stream_.synchronize(Deadline::after(std::chrono::minutes(10)));
      if (i >= 0) ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - before).count());
    }
    std::nth_element(ms.begin(), ms.begin() + o_.repeats / 2, ms.end());
    const double median = ms[static_cast<std::size_t>(o_.repeats / 2)];
    fmt::print("{:<22} {:>10.2f} {:>10.3f} {:>10.1f}\n", name, median, operations / 1e9, operations / median / 1e6);
  }

  const Options o_;
  std::mt19937_64 rng_{std::random_device{}()};
  Device device_ = Device::host();
  Stream stream_ = device_.create_stream();
  std::shared_ptr<KernelSet> kernels_ = cpu_kernels({o_.threads});
  Tensor q_, kv_, dout_, index_q_, index_k_, index_w_;
  Tensor out_, dq_, lse_, head_sums_, dkv_, d_index_q_, d_index_w_, d_index_k_;
  TopkLists lists_;
  std::vector<std::int64_t> begin_, end_;
};

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Rates of the cpu kernels.\n\nExample: kernels_bench --tokens 2048 --heads 64 --index-heads 64 --topk 512");
  app.add_option("--tokens", o.tokens, "length of the document")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--heads", o.heads, "attention heads")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--index-heads", o.index_heads, "indexer heads")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--topk", o.topk, "keys a row selects")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--dtype", o.dtype, "of the inputs")->capture_default_str()->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--threads", o.threads, "0: all cores")->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("--repeats", o.repeats, "the median of which is shown")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    Bench(o).run();
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "kernels_bench: {}\n", e.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "launcher.hpp"
#include "process.hpp"
#include "tandem/version.hpp"
#include "usage.hpp"

namespace tandem::cli {
namespace {

constexpr const char* main_footer = R"(
Run `tandem COMMAND --help` for the options of a command.

Examples:
  tandem info
  tandem dsa --ranks 2 --seq-len 256 --check
  tandem bench gather -b 64K -e 1M
  tandem launch -n 2 -- tandem dsa --seq-len 256)";

constexpr const char* launch_footer = R"(
COMMAND finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and TANDEM_STORE in its environment. The exit code is 0, or
that of the first rank that failed (128 + signal if a signal ended it).

Examples:
  tandem launch -n 2 -- sh -c 'echo "I am rank $RANK of $WORLD_SIZE"'
  tandem launch -n 3 --prefix -- tandem dsa --seq-len 300 --check)";

constexpr const char* dsa_footer = R"(
Runs one forward and backward step. Starts its own ranks unless a launcher (tandem launch, torchrun) has. Exit code: 0 if
all is well, 1 if the check or a rank failed, 2 if the command line cannot be.

Examples:
  tandem dsa --check
  tandem dsa --ranks 3 --docs 100,0,257,31 --layout contiguous --check
  tandem dsa --ranks 2 --docs 90,128 --pad-to 128 --dtype bf16 --check
  tandem dsa --ranks 2 --seq-len 256 --dtype bf16 --index-dtype e4m3 --check
  tandem dsa --ranks 4 --transport loopback --seq-len 512 --memory --json
  tandem dsa --ranks 2 --device host --kernels cpu --check

On a GPU, ranks of one host share it if there are fewer GPUs: tandem dsa --ranks 2 --device cuda --dtype bf16 --check)";

constexpr const char* bench_footer = R"(
Sizes count the bytes of all ranks together, as nccl-tests does. Times are those of the slowest rank: the median, the 95th
percentile and the coefficient of variation of --iters iterations, each timed by itself, all ranks starting together; "in a
row" is the time of one of --iters iterations without a pause (--device cuda). "ratio" is a contender's time over tandem's.
On GPUs memory is new and caches are cold in every iteration, and --versus and --beside compare, as in
`tandem bench gather --device cuda --versus nccl --beside gemm:4 -b 1M -e 256M`. Starts its own ranks unless a launcher (tandem launch, torchrun) has. Exit code: 0 if all data was right, 1 if not or if a
rank failed, 2 if the command line cannot be.

Kernels run on one rank, inputs in bf16. TFLOP/s count useful operations, 2 Hi 128 for a scored pair, 2 H (d + 512) for a
selected one, 2 H (3 d + 1024) in a backward; rows that take all they see are not scored. GB/s count what must move once;
"adds" are the fp32 rows of dkv that a backward adds if it merges none, one for each pair. On GPUs "floor" is the larger of
operations at 790 TFLOP/s bf16 (measured: a GEMM on one H200) or 1500 e4m3 (assumed) and bytes at 4.3 TB/s (assumed); "of it"
is the floor over the time. Some rows are computed again in double; scratch is what the kernel set holds. A step (dsa-fwd,
dsa-bwd, dsa-step) takes turns with its kernels alone, on rows that have landed, and its gather and its reduction alone:
"exposed" is what it takes beyond its kernels, "hidden" the part of the communication's time that is not exposed.

Examples:
  tandem bench gather -b 64K -e 1M
  tandem bench reduce --ranks 3 --transport loopback -b 100K -e 100K -n 5 --json
  tandem bench exchange -b 1M -e 4M -f 4 --csv
  tandem bench gather -b 256K -e 256K -n 5 --slow-link 10
  tandem bench indexer --pattern random,ascending -n 5
  tandem bench topk --seq-len 1024,4096 --share 2,4 -n 5 --csv
  tandem bench sparse-fwd --pattern random,text -n 5 --json
  tandem bench sparse-bwd --pattern text -n 3
  tandem bench dsa-fwd --ranks 2 --seq-len 512 -n 5
  tandem bench dsa-bwd --ranks 2 --seq-len 256 -n 3 --loss sparse --csv
  tandem bench dsa-step --ranks 2 --seq-len 256 -n 3 --slow-link 8
  tandem bench dsa-step --ranks 2 --seq-len 1024 -n 3 --emulate-ranks 8)";

constexpr const char* info_footer = R"(
Examples:
  tandem info
  tandem info --json
  tandem info --routes)";

// `tandem launch [options] [--] command...`: the command's own options are none of ours, so it is cut off before
// parsing.
struct CommandLine {
  std::vector<std::string> own;
  std::vector<std::string> command;
};

CommandLine split_launch(const std::vector<std::string>& arguments) {
  CommandLine line;
  std::size_t i = 2;
  while (i < arguments.size() && arguments[i].starts_with("-") && arguments[i] != "--") {
    const bool takes_value = arguments[i] == "-n" || arguments[i] == "--ranks" || arguments[i] == "--grace";
    i += takes_value ? 2 : 1;
  }
  i = std::min(i, arguments.size());
  const auto cut = arguments.begin() + static_cast<std::ptrdiff_t>(i);
  line.own.assign(arguments.begin(), cut);
  line.command.assign(cut, arguments.end());
  if (!line.command.empty() && line.command.front() == "--") line.command.erase(line.command.begin());
  return line;
}

class Cli {
 public:
  Cli() {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", fmt::format("tandem {}", version()));
    app_.footer(main_footer);
    add_launch();
    add_dsa();
    add_bench();
    CLI::App* info = app_.add_subcommand("info", "Show what this build and this host offer");
    info->add_flag("--json", info_json_, "Print one JSON object");
    info->add_flag("--routes", info_routes_,
                   "Also try how ranks on the GPUs of this host reach each other, and why so");
    info->footer(info_footer);
    info->callback([this] { action_ = [this] { return run_info(info_json_, info_routes_); }; });
  }

  int run(std::vector<std::string> arguments) {
    const std::vector<std::string> all = arguments;
    if (arguments.size() > 1 && arguments[1] == "launch") {
      CommandLine line = split_launch(arguments);
      arguments = std::move(line.own);
      launch_.command = std::move(line.command);
    }
    command_line_ = all;
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend() - 1);  // as CLI11 wants them
    try {
      app_.parse(reversed);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error);  // --help, --version
      throw UsageError(names_unknown_command(all) ? fmt::format("there is no command '{}'", all[1]) : error.what());
    }
    return action_();
  }

 private:
  // CLI11 then only says that a command is missing.
  bool names_unknown_command(const std::vector<std::string>& arguments) {
    return arguments.size() > 1 && !arguments[1].starts_with("-") &&
           app_.get_subcommands([&](const CLI::App* c) { return c->get_name() == arguments[1]; }).empty();
  }

  void add_launch() {
    CLI::App* launch = app_.add_subcommand("launch", "Run a command as N ranks on this host");
    launch->add_option("COMMAND", launch_.command, "What to run, with its arguments; a '--' may stand in front");
    launch->add_option("-n,--ranks", launch_ranks_, "Number of ranks")->required()->type_name("N");
    launch->add_flag("--prefix", launch_.prefix, "Put \"[rank] \" in front of every line");
    launch->add_option("--grace", launch_grace_, "Seconds for the others to end once a rank has failed (5)")
        ->type_name("S");
    launch->footer(launch_footer);
    launch->callback([this] {
      action_ = [this] {
        launch_.ranks = static_cast<int>(parse_integer("--ranks", launch_ranks_, 1, 1024));
        if (!launch_grace_.empty()) launch_.grace = parse_seconds("--grace", launch_grace_);
        if (launch_.command.empty()) throw UsageError("launch: there is no command to run");
        return cli::launch(launch_);
      };
    });
  }

  void add_dsa() {
    CLI::App* dsa = app_.add_subcommand("dsa", "Run context-parallel sparse attention once, and check it");
    const auto value = [&](const char* name, std::optional<std::string>& target, const char* type, const char* help) {
      dsa->add_option(name, target, help)->type_name(type);
    };
    DsaArguments& a = dsa_;
    value("--ranks", a.ranks, "N", "Number of ranks (4, or the launcher's)");
    value(
        "--transport", a.transport, "NAME",
        "tcp between processes (default) or loopback between threads; between GPUs cuda_p2p, nccl or tcp (the first of "
        "them that works)");
    value("--device", a.device, "host|cuda", "Where ranks compute (host); ranks share GPUs if they are more");
    value("--kernels", a.kernels, "NAME",
          "Kernel set: cpu on the host; on GPUs cuda (the best there is), cuda.generic or cuda.sm90");
    value("--rendezvous-timeout", a.rendezvous_timeout, "S", "Seconds for ranks to find each other (10)");
    value("--timeout", a.timeout, "S", "Seconds that an operation may take (60)");
    value("--model", a.model, "NAME",
          "tiny (default: H 4, Hi 2, d 576, K 64), deepseek-v3.2 (128, 64, 576, 2048) or glm-5 (64, 32, 576, 2048)");
    value("--seq-len", a.seq_len, "S", "One document of S tokens in all (1024)");
    value("--docs", a.docs, "L0,L1,...", "Packed documents of these lengths; 0 is legal");
    value("--pad-to", a.pad_to, "P", "Pad every document to P rows");
    dsa->add_option("--input", a.input, "Text files: each a document, each byte a token")
        ->type_name("FILE")
        ->expected(-1);
    value("--layout", a.layout, "contiguous|zigzag", "How documents are split (zigzag)");
    value("--topk", a.topk, "K", "Keys that a query attends to");
    value("--heads", a.heads, "H", "Attention heads");
    value("--index-heads", a.index_heads, "Hi", "Heads of the indexer");
    value("--chunk-tokens", a.chunk_tokens, "C", "Most rows of a chunk (an eighth of a shard, at most 1024)");
    value("--dtype", a.dtype, "fp32|bf16", "Of inputs and outputs (fp32)");
    value("--index-dtype", a.index_dtype, "fp32|bf16|e4m3",
          "Of the indexer's queries and keys (as --dtype); e4m3 has a scale for each row, and each head of a query");
    dsa->add_flag("--deterministic", a.deterministic,
                  "Equal bits from run to run: always so on the host; on GPUs at some cost in the backward");
    value("--loss-pass", a.loss_pass, "forward|backward",
          "Which pass computes the indexer loss (backward, which has what it needs at hand)");
    value("--wire", a.wire, "fp32|bf16", "How gradients of keys travel (fp32)");
    dsa->add_flag("--check", a.check, "Compare with the unsharded float64 reference");
    dsa->add_flag("--memory", a.memory, "Show each rank's memory");
    value("--trace", a.trace, "OUT.json", "Write a timeline for https://ui.perfetto.dev");
    dsa->add_flag("--json", a.json, "Print one JSON object and nothing else");
    value("--seed", a.seed, "N", "Of the inputs (1)");
    dsa->footer(dsa_footer);
    dsa->callback([this] { action_ = [this] { return run_dsa(dsa_, command_line_); }; });
  }

  void add_bench() {
    CLI::App* bench = app_.add_subcommand("bench", "Time communication, kernels, or a step of the operator");
    const auto value = [&](const char* name, std::optional<std::string>& target, const char* type, const char* help) {
      bench->add_option(name, target, help)->type_name(type);
    };
    BenchArguments& a = bench_;
    bench
        ->add_option("OPERATION", a.operation,
                     "gather, reduce or exchange: communication of many sizes; indexer, topk, sparse-fwd or "
                     "sparse-bwd: a kernel; dsa-fwd, dsa-bwd or dsa-step: a forward, a backward, or both")
        ->required();
    value("--ranks", a.ranks, "N", "Number of ranks (2, or the launcher's)");
    value("--device", a.device, "host|cuda", "Where the memory is (host); ranks share GPUs if they are more");
    value("--transport", a.transport, "NAME", "tcp on the host, cuda_p2p on GPUs, or what tandem info lists");
    value("-b,--minbytes", a.min_bytes, "SIZE", "Smallest size: bytes, or with K, M or G (1M)");
    value("-e,--maxbytes", a.max_bytes, "SIZE", "Largest size (64M)");
    value("-f,--stepfactor", a.step_factor, "N", "From one size to the next (2)");
    value("-n,--iters", a.iterations, "N", "Timed iterations (20)");
    value("-w,--warmup_iters", a.warmup, "N", "Iterations before them (5)");
    value("-c,--check", a.check, "0|1", "Check the data: of all iterations on GPUs, else of one more (1)");
    value("-G,--cudagraph", a.graph_launches, "N",
          "Capture --iters iterations in a graph, and time N launches of it (0)");
    value("--chunk-tokens", a.chunk_tokens, "C", "Most rows of a chunk (an eighth of a shard, at most 1024)");
    value("--versus", a.versus, "nccl",
          "By turns with NCCL's all-gather or reduce-scatter of the same sizes, in place");
    value("--beside", a.beside, "gemm[:N]", "Also beside N bf16 GEMMs of 8192^3 on another stream (4)");
    bench
        ->add_option("--option", a.transport_options,
                     "An option of the transport, as tandem info lists them; may be given often")
        ->type_name("KEY=VALUE");
    value("--slow-link", a.slow_link, "X", "Send every byte X times, to play a link X times slower (1)");
    value("--model", a.model, "NAME", "Of kernels and steps: tiny (on the host), deepseek-v3.2 (on GPUs) or glm-5");
    value("--seq-len", a.seq_len, "S[,S...]", "Keys of a kernel, tokens of a step (1024 on the host, 65536 on GPUs)");
    value("--queries", a.queries, "N", "Of a kernel: queries that all see all keys (128 on the host, 4096 on GPUs)");
    value("--share", a.share, "R[,R...]", "Instead: the causal zigzag rows of rank 0 of R");
    value("--pattern", a.pattern, "P[,P...]",
          "Of a kernel's scores, or lists: random, text (4 of 5 keys in the last 8192 rows); of scores also ascending, "
          "equal (random)");
    value("--topk", a.topk, "K", "Keys that a query attends to");
    value("--heads", a.heads, "H", "Attention heads");
    value("--index-heads", a.index_heads, "Hi", "Heads of the indexer");
    value("--index-dtype", a.index_dtype, "bf16|e4m3", "Of the indexer's queries and keys (bf16)");
    value("--kernels", a.kernels, "NAME",
          "Kernel set: cpu on the host; on GPUs cuda (the best there is), cuda.generic or cuda.sm90");
    value("--layout", a.layout, "contiguous|zigzag", "Of a step: how the sequence is split (zigzag)");
    value("--emulate-ranks", a.emulate_ranks, "N",
          "Of a step: each rank has the queries of one rank of N, the others send it all else");
    value("--schedule", a.schedule, "NAME",
          "Of a step: overlap (the operator), blocking (the whole gather, its kernels, the whole reduction) or both "
          "(both)");
    value("--loss", a.loss, "none|sparse", "Of dsa-bwd and dsa-step: the indexer loss (none)");
    bench->add_flag("--deterministic", a.deterministic,
                    "Of sparse-bwd, dsa-bwd and dsa-step: kernels whose gradients have equal bits from run to run");
    value("--timeout", a.timeout, "S", "Seconds that an operation may take (60)");
    value("-J,--output_file", a.output_file, "FILE", "Write the JSON object to FILE as well");
    bench->add_flag("--json", a.json, "Print one JSON object and nothing else");
    bench->add_flag("--csv", a.csv, "Print lines of comma-separated values");
    bench->footer(bench_footer);
    bench->callback([this] { action_ = [this] { return run_bench_command(bench_, command_line_); }; });
  }

  CLI::App app_{"Context-parallel communication and reference kernels for DeepSeek Sparse Attention", "tandem"};
  LaunchOptions launch_;
  std::string launch_ranks_;
  std::string launch_grace_;
  DsaArguments dsa_;
  BenchArguments bench_;
  bool info_json_ = false;
  bool info_routes_ = false;
  std::vector<std::string> command_line_;
  std::function<int()> action_;
};

// Ranks of one job share stderr; who speaks matters there.
std::string speaker() {
  const char* rank = std::getenv("RANK");
  return rank != nullptr && std::getenv("WORLD_SIZE") != nullptr ? fmt::format("tandem: rank {}: ", rank) : "tandem: ";
}

int guarded_main(const std::vector<std::string>& arguments) {
  try {
    return Cli().run(arguments);
  } catch (const UsageError& error) {
    write_all(STDERR_FILENO, fmt::format("{}{}\nRun it with --help for the options.\n", speaker(), error.what()));
    return exit_usage;
  } catch (const std::exception& error) {
    write_all(STDERR_FILENO, fmt::format("{}{}\n", speaker(), error.what()));
    return exit_failure;
  }
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) { return tandem::cli::guarded_main({argv, argv + argc}); }

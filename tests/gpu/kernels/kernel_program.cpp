// SPDX-License-Identifier: Apache-2.0
#include "kernel_program.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tandem/built_from.hpp"

namespace tandem::test {
namespace {

constexpr int wrong_usage = 3;

}  // namespace

KernelProgram parse_kernel_program(int argc, char** argv, const std::string& about, bool of_indexer) {
  std::setvbuf(stdout, nullptr, _IOLBF, 4096);
  KernelProgram p;
  p.seed = std::random_device{}();
  for (int i = 0; i < argc; ++i) p.command += (i > 0 ? " " : "") + std::string(argv[i]);
  CLI::App app(about + "\nExit code: 0 right, 1 wrong results, 2 a CUDA error, 3 a wrong command line.");
  app.add_flag("--check", p.check, "Check the results; without --check and --bench both is done");
  app.add_flag("--bench", p.bench, "Time them");
  app.add_flag("--quick", p.quick, "Less of either");
  app.add_option("--heads", p.heads, "Other heads than the usual, as 8,64")->delimiter(',')->check(CLI::Range(1, 128));
  app.add_option("--runs", p.runs, "Of each timing (21)")->check(CLI::Range(1, 100000));
  app.add_option("--seed", p.seed, "Of the data (another in every run)");
  app.add_option("--json", p.json, "Write figures, commit and device to this file");
  if (of_indexer) {
    app.add_option("--dtype", p.dtype, "Only one type")->check(CLI::IsMember({"bf16", "e4m3"}));
    app.add_option("--one", p.one, "QUERIES,KEYS,HEADS,TOPK: launch this shape once, for a profiler");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : wrong_usage);
  }
  if (!p.check && !p.bench) p.check = p.bench = true;
  std::printf("seed %llu\n", static_cast<unsigned long long>(p.seed));
  return p;
}

void write_figures(const KernelProgram& program, const std::string& device, int failures,
                   const std::vector<Figure>& figures) {
  if (program.json.empty()) return;
  using json = nlohmann::ordered_json;
  json list = json::array();
  for (const Figure& figure : figures) {
    json& one = list.emplace_back(json::object());
    for (const auto& [name, value] : figure) std::visit([&, &key = name](const auto& v) { one[key] = v; }, value);
  }
  const cli::BuiltFrom from = cli::built_from();
  const json all = {{"commit", from.commit}, {"dirty", from.dirty},  {"command", program.command}, {"device", device},
                    {"seed", program.seed},  {"runs", program.runs}, {"failures", failures},       {"figures", list}};
  std::ofstream file(program.json);
  file << all.dump(1) << '\n';
  file.close();
  if (file) return;
  std::fprintf(stderr, "cannot write %s\n", program.json.c_str());
  std::exit(wrong_usage);
}

}  // namespace tandem::test

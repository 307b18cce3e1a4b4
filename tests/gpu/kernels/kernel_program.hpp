// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

/// The command line of programs that check and time kernels by themselves, and the file that they leave. Free of CUDA,
/// so that the libraries for it need not be compiled by nvcc.
namespace tandem::test {

struct KernelProgram {
  bool check = false;
  bool bench = false;
  bool quick = false;      ///< less of either
  std::vector<int> heads;  ///< empty: the program's own
  int runs = 21;           ///< of each timing
  std::uint64_t seed = 0;  ///< another in every run, unless given
  std::string json;        ///< file for the figures, or ""
  std::string command;     ///< as it was typed
  // Of the indexer's program alone.
  std::string dtype;  ///< "bf16", "e4m3" or both: ""
  std::string one;    ///< "QUERIES,KEYS,HEADS,TOPK" to launch once, or ""
};

/// Prints the seed. Ends the process on --help (exit code 0) and on a wrong command line (3).
KernelProgram parse_kernel_program(int argc, char** argv, const std::string& about, bool of_indexer = false);

/// One measurement, field by field.
using Figure = std::vector<std::pair<std::string, std::variant<double, std::int64_t, bool, std::string>>>;

/// Writes program.json, if it is wanted: commit and dirty as built, command, device, seed, runs, failures, figures.
/// Ends the process if it cannot (3).
void write_figures(const KernelProgram& program, const std::string& device, int failures,
                   const std::vector<Figure>& figures);

}  // namespace tandem::test

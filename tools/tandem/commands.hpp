// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench/options.hpp"
#include "job.hpp"

/// The subcommands. Each returns the exit code, and throws UsageError or Error.
namespace tandem::cli {

/// `command_line`: how this process was called, for the ranks it starts.
int run_dsa(const DsaArguments& arguments, const std::vector<std::string>& command_line);
int run_bench_command(const BenchArguments& arguments, const std::vector<std::string>& command_line);
/// `routes`: also makes ranks on the devices of this host, to see how they reach each other.
int run_info(bool json, bool routes);

}  // namespace tandem::cli

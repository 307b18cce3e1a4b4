#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks by which tandem is judged on GPUs of one host, against NCCL in the same process.
#
#     gpu_suite.sh TANDEM PREFIX RANKS
#
# Runs TANDEM (the command) over RANKS ranks, prints its tables, and writes PREFIX-<name>.json for each. Sizes are those
# of rows of 576 elements: 0.6 to 151 MB of bf16 on each rank in gathers, 1.2 to 302 MB of fp32 in reductions.
set -uo pipefail

[ $# -eq 3 ] || {
  sed -n '3,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
tandem=$1 prefix=$2 ranks=$3
failed=()

# kib N: N KiB on each rank, as the sizes of bench count: of all ranks together.
kib() { echo "$(($1 * ranks))K"; }

# bench NAME ARGUMENT...: one benchmark, into PREFIX-NAME.json
bench() {
  local name=$1
  shift
  printf '\n== %s\n' "$name"
  "$tandem" bench "$@" --device cuda --ranks "$ranks" -J "$prefix-$name.json" || failed+=("$name")
}

gather=(gather -b "$(kib 576)" -e "$(kib 147456)" -f 4 --versus nccl)
reduce=(reduce -b "$(kib 1152)" -e "$(kib 294912)" -f 4 --versus nccl)
bench gather "${gather[@]}" -n 50
bench gather-graph "${gather[@]}" -n 20 -G 20
bench reduce "${reduce[@]}" -n 50
bench reduce-graph "${reduce[@]}" -n 20 -G 20
bench exchange exchange -b "$(kib 576)" -e "$(kib 147456)" -f 4 -n 50
bench gather-beside-gemm gather -b "$(kib 36864)" -e "$(kib 147456)" -f 4 -n 20 --versus nccl --beside gemm:4
bench reduce-beside-gemm reduce -b "$(kib 73728)" -e "$(kib 294912)" -f 4 -n 20 --versus nccl --beside gemm:4
bench gather-slow-link gather -b "$(kib 9216)" -e "$(kib 36864)" -f 4 -n 20 --slow-link 8 --beside gemm:4

[ ${#failed[@]} -eq 0 ] || {
  printf 'failed: %s\n' "${failed[*]}" >&2
  exit 1
}

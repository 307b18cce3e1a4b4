#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks by which the kernels and the steps of the operator are judged on GPUs of one host.
#
#     compute_suite.sh TANDEM PREFIX RANKS
#
# Runs TANDEM (the command), prints its tables, and writes PREFIX-<name>.json for each: kernels on one GPU, with the
# shapes of public benchmarks and with the rows of a rank of 2, 4 and 8; forward, backward and whole steps over RANKS ranks,
# if more than 1.
set -uo pipefail

[ $# -eq 3 ] || {
  sed -n '3,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
tandem=$1 prefix=$2 ranks=$3
failed=()

# bench NAME ARGUMENT...: one benchmark, into PREFIX-NAME.json
bench() {
  local name=$1
  shift
  printf '\n== %s\n' "$name"
  "$tandem" bench "$@" --device cuda -J "$prefix-$name.json" || failed+=("$name")
}

scores=random,text,ascending,equal
for model in deepseek-v3.2 glm-5; do
  for dtype in bf16 e4m3; do
    bench "indexer-$model-$dtype" indexer --model "$model" --index-dtype "$dtype" --pattern "$scores"
    bench "indexer-share-$model-$dtype" indexer --model "$model" --index-dtype "$dtype" --share 2,4,8 -n 10 -w 2
  done
  bench "sparse-fwd-$model" sparse-fwd --model "$model" --seq-len 8192,65536 --pattern random,text
  bench "sparse-fwd-share-$model" sparse-fwd --model "$model" --share 2,4,8 --pattern random,text -n 10 -w 2
  bench "sparse-bwd-$model" sparse-bwd --model "$model" --seq-len 8192,65536 --pattern random,text
  bench "sparse-bwd-share-$model" sparse-bwd --model "$model" --share 2,4,8 --pattern random,text -n 10 -w 2
done
bench topk topk --pattern "$scores"
if [ "$ranks" -gt 1 ]; then
  for model in deepseek-v3.2 glm-5; do
    for dtype in bf16 e4m3; do
      bench "dsa-fwd-$model-$dtype" dsa-fwd --model "$model" --index-dtype "$dtype" --ranks "$ranks" --seq-len 16384,65536 -w 2
    done
  done
  for heads in 128 16; do
    bench "dsa-step-$heads-heads" dsa-step --heads "$heads" --ranks "$ranks" --seq-len 8192,16384,32768,65536 -n 10 -w 2
    bench "dsa-step-$heads-heads-slow-link" dsa-step --heads "$heads" --ranks "$ranks" --seq-len 8192,65536 --slow-link 8 -n 10 -w 2
  done
  bench dsa-step-emulated dsa-step --heads 16 --ranks "$ranks" --seq-len 65536 --emulate-ranks 8 --slow-link 8 -n 10 -w 2
  bench dsa-bwd dsa-bwd --ranks "$ranks" --seq-len 16384,65536 -n 10 -w 2
  bench dsa-step-loss dsa-step --ranks "$ranks" --seq-len 16384 --loss sparse -n 10 -w 2
  bench dsa-fwd-slow-link dsa-fwd --ranks "$ranks" --seq-len 16384 --slow-link 8 -w 2
fi

[ ${#failed[@]} -eq 0 ] || {
  printf 'failed: %s\n' "${failed[*]}" >&2
  exit 1
}

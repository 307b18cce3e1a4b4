# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The commands of tools/dev for machines with GPUs; sourced by it.

gpu_programs=(tests/gpu/gpu_device tests/gpu/gpu_kernels tests/gpu/gpu_p2p tests/gpu/gpu_staged tests/gpu/gpu_bench)
# Only where the headers of CUPTI and NCCL were found.
gpu_programs_at_times=(tests/gpu/gpu_activity tests/gpu/gpu_nccl)
# They check the kernels for Hopper by themselves; built only with code for it.
sm90_programs=(sm90_indexer_bench sm90_forward_bench sm90_backward_bench sm90_loss_bench)

# The programs need nothing of this machine but its C++ library: they can be carried to where the GPU is.
gpu_build() {
  preset=cuda
  find_missing_for_build
  install_missing
  say "configuring build/cuda"
  cmake --preset cuda -DTANDEM_FMT_HEADER_ONLY=ON
  local program
  for program in gpu_device gpu_kernels gpu_p2p gpu_staged; do build "$program"; done
  for program in gpu_activity gpu_nccl "${sm90_programs[@]}" "${sm90_programs[@]/%bench/stress}"; do
    if grep -q "tests/gpu/$program\b" build/cuda/build.ninja; then build "$program"; fi
  done
  build tandem_command
  build gpu_bench
  local dirty=false
  [ -z "$(git status --porcelain 2>/dev/null)" ] || dirty=true
  printf '%s %s\n' "$(git rev-parse HEAD 2>/dev/null || echo unknown)" "$dirty" >build/cuda/built-from
}

gpu_expect_build() {
  local program
  for program in "${gpu_programs[@]}" bin/tandem; do
    [ -x "build/cuda/$program" ] || die "build/cuda/$program is missing: build it with ./tools/dev gpu-test --build, and carry build/cuda here"
  done
}

# gpu_pack FILE: what --run and --bench need of build/cuda and of the sources.
gpu_pack() {
  local file folder program
  [ $# -eq 1 ] || wrong_usage "gpu-test --pack needs the name of one file"
  case $1 in /*) file=$1 ;; *) file=$called_from/$1 ;; esac
  gpu_expect_build
  folder=$(mktemp -d)
  # The name is wanted now: the trap outlives it.
  # shellcheck disable=SC2064
  trap "rm -rf '$folder'" EXIT
  for program in bin/tandem build/cuda/tests/gpu/{gpu,sm90}_* build/cuda/tests/gpu/*.so; do
    program=${program#build/cuda/}
    [ -f "build/cuda/$program" ] && [ -x "build/cuda/$program" ] || continue
    mkdir -p "$folder/build/cuda/${program%/*}"
    strip -o "$folder/build/cuda/$program" "build/cuda/$program"
  done
  cp build/cuda/built-from "$folder/build/cuda"
  cp -r tools "$folder"
  # All programs hold the same kernels, tens of megabytes apart: a dictionary that reaches from one to the next.
  tar -C "$folder" -c build tools | xz --lzma2=preset=6,dict=128MiB >"$file"
  say "$file: $(du -h "$file" | cut -f1); unpack it anywhere, and run ./tools/dev gpu-test --run there"
}

# gpu_run NAME PROGRAM: runs it, notes its outcome for the JSON file.
gpu_run() {
  local name=$1 log=build/cuda/$1.log status=0 outcome
  shift
  say "running $name"
  env "$@" 2>&1 | tee "$log" | grep -E '^\[  (FAILED |PASSED) |SKIPPED:' | sort | uniq -c >&2 || true
  grep -q '^\[  PASSED  \]' "$log" && ! grep -q '^\[  FAILED  \]' "$log" || status=1
  outcome=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
  gpu_figures+=("    \"$name\": {\"passed\": ${outcome:-0}, \"failed\": $(grep -c '^\[  FAILED  \].*(.* ms)$' "$log" || true), \"skipped\": $(grep -c '^\[  SKIPPED \].*(.* ms)$' "$log" || true)}")
  return "$status"
}

# gpu_check NAME PROGRAM ARGUMENT...: the same of one that says by its exit code whether all is right.
gpu_check() {
  local name=$1 status=0
  shift
  say "running $name"
  "$@" >"build/cuda/$name.log" 2>&1 || status=$?
  tail -n 1 "build/cuda/$name.log" >&2
  gpu_figures+=("    \"$name\": {\"exit_code\": $status}")
  return "$status"
}

# gpu_one NAME: one of gpu_names.
gpu_one() {
  local program=build/cuda/tests/gpu/${1%.one_connection}
  case $1 in
    *.one_connection) gpu_run "$1" CUDA_DEVICE_MAX_CONNECTIONS=1 "$program" ;;
    sm90_*) gpu_check "$1" "$program" --check ;;
    *) gpu_run "$1" "$program" ;;
  esac
}

# What --run runs, one a line.
gpu_names() {
  local program
  printf '%s\n' gpu_device gpu_device.one_connection
  for program in "${gpu_programs[@]:1}"; do printf '%s\n' "${program##*/}"; done
  for program in "${gpu_programs_at_times[@]}"; do
    [ ! -x "build/cuda/$program" ] || printf '%s\n' "${program##*/}"
  done
  if nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -qx '9\.0'; then
    for program in "${sm90_programs[@]}"; do
      [ ! -x "build/cuda/tests/gpu/$program" ] || printf '%s\n' "$program"
    done
  fi
}

# gpu_tests [NAME...]: all, or these of them.
gpu_tests() {
  local commit dirty status=0 device file name gpu_figures=() names=()
  gpu_expect_build
  device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *//; s/ /x /' | paste -sd ';') || true
  [ -n "$device" ] || die "nvidia-smi shows no GPU here"
  read -r commit dirty <build/cuda/built-from
  mapfile -t names < <(gpu_names)
  for name in "$@"; do
    printf '%s\n' "${names[@]}" | grep -qxF -- "$name" || wrong_usage "gpu-test --run: there is no '$name' here, but ${names[*]}"
  done
  [ $# -eq 0 ] || names=("$@")
  for name in "${names[@]}"; do gpu_one "$name" || status=1; done
  file=docs/results/$(date +%F)-gpu-test.json
  mkdir -p docs/results
  {
    printf '{\n  "commit": "%s",\n  "dirty": %s,\n  "command": "./tools/dev gpu-test%s",\n  "device": "%s",\n  "figures": {\n' "$commit" "$dirty" "$([ $# -eq 0 ] || echo " --run $*")" "$device"
    local i
    for i in "${!gpu_figures[@]}"; do
      printf '%s%s\n' "${gpu_figures[i]}" "$([ "$i" -eq $((${#gpu_figures[@]} - 1)) ] || echo ,)"
    done
    printf '  }\n}\n'
  } >"$file"
  say "$file"
  cat "$file"
  return "$status"
}

gpu_bench() {
  local ranks
  [ -x build/cuda/bin/tandem ] || die "build/cuda/bin/tandem is missing: build it with ./tools/dev gpu-test --build, and carry build/cuda here"
  ranks=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l)
  [ "$ranks" -ge 1 ] || die "nvidia-smi shows no GPU here"
  [ "$ranks" -ge 2 ] || say "one GPU alone: nothing is communicated, so this only shows that the benchmarks run"
  mkdir -p docs/results
  local status=0
  tools/bench/gpu_suite.sh build/cuda/bin/tandem "docs/results/$(date +%F)-bench" "$ranks" || status=1
  tools/bench/compute_suite.sh build/cuda/bin/tandem "docs/results/$(date +%F)-bench" "$ranks" || status=1
  return "$status"
}

gpu_test() {
  local mode=${1:-}
  shift || true
  [ "$mode" = --run ] || [ "$mode" = --pack ] || [ $# -eq 0 ] || wrong_usage "gpu-test $mode takes no '$1'"
  case $mode in
    --build) gpu_build ;;
    --pack) gpu_pack "$@" ;;
    --run) gpu_tests "$@" ;;
    --bench) gpu_bench ;;
    '') gpu_build && gpu_tests ;;
    *) wrong_usage "gpu-test takes no '$mode'" ;;
  esac
}

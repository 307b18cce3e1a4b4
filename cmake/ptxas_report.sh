#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a compiler, and leaves what ptxas says of registers and spills beside the object file, as <object>.ptxas. Shows
# everything else. A CUDA_COMPILER_LAUNCHER: ptxas_report.sh [LAUNCHER] NVCC ... -o OBJECT ...
object='' before=''
for argument in "$@"; do
  [ "$before" = -o ] && object=$argument
  before=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.ptxas"
status=$?
grep -vE '^(ptxas info|    [0-9]+ bytes stack frame|$)' "$object.ptxas" >&2
exit "$status"

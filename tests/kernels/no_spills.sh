#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# no_spills.sh FOLDER: fails if a kernel of the ptxas reports in FOLDER spills registers, or has matrix instructions that
# ptxas ran one after another.
set -euo pipefail
mapfile -t reports < <(find "$1" -name '*.ptxas')
kernels=0 bad=0
for report in "${reports[@]}"; do
  # A line each: name, bytes of stack, stores and loads that spill.
  while read -r name stack stores loads; do
    kernels=$((kernels + 1))
    [ "$stack" -eq 0 ] && [ "$stores" -eq 0 ] && [ "$loads" -eq 0 ] && continue
    echo "$name: $stack bytes of stack, $stores of spill stores, $loads of spill loads"
    bad=1
  done < <(awk '/Function properties for/ {name = $NF}
                /bytes stack frame/ {print name, $1, $5, $9}' "$report")
  if grep -E 'C75[0-9][0-9]|serializ' "$report"; then bad=1; fi
done
echo "$kernels kernels in ${#reports[@]} reports"
[ "$kernels" -gt 0 ] || {
  echo "no report of ptxas in $1"
  exit 1
}
exit "$bad"

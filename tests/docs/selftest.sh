#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_examples.sh finds and runs what it should, and fails where it should.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$here/samples:$PATH
failures=0

# expect STATUS LAST_LINE ARGUMENTS...
expect() {
  local status=0 output
  output=$("$here/run_examples.sh" "${@:3}" 2>&1) || status=$?
  if [ "$status" -ne "$1" ] || [ "$(tail -n 1 <<<"$output")" != "$2" ]; then
    printf 'run_examples.sh %s: expected exit %s and "%s", got exit %s and\n%s\n' "${*:3}" "$1" "$2" "$status" "$output"
    failures=$((failures + 1))
  fi
}

expect 0 "5 passed, 0 failed, 1 not run" markdown "$here/samples/good.md"
expect 1 "2 passed, 2 failed, 0 not run" markdown "$here/samples/bad.md"
expect 1 "no example was found" markdown /dev/null
expect 0 "3 passed, 0 failed, 0 not run" help program
SAMPLE_BREAK=example expect 1 "2 passed, 1 failed, 0 not run" help program
SAMPLE_BREAK=section expect 1 "2 passed, 1 failed, 0 not run" help program
[ "$failures" -eq 0 ] && echo "all as expected"

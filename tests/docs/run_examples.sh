#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the example commands of documents and of --help pages; fails if one does not exit 0.
#
#   run_examples.sh markdown FILE...   commands after "$ " in blocks fenced with ```console
#   run_examples.sh help PROGRAM       the Examples sections of PROGRAM --help and of all its subcommands' --help
#
# A block or help page is run by itself, command by command, in a fresh empty directory. A block fenced with
# ```console notest REASON is left out, aloud. Blocks fenced with ```sh, ```bash or ```shell would escape: they fail.
set -euo pipefail
export LC_ALL=C

seconds_per_command=${EXAMPLE_TIMEOUT:-120}
passed=0
failed=0
skipped=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# run_block WHERE: runs the commands on stdin, one a line.
run_block() {
  local where=$1 line
  rm -rf "$scratch/run"
  mkdir "$scratch/run"
  while IFS= read -r line; do
    printf '%s: %s\n' "$where" "$line"
    if (cd "$scratch/run" && timeout "$seconds_per_command" bash -o pipefail -c "$line") >"$scratch/output" 2>&1 </dev/null; then
      passed=$((passed + 1))
    else
      printf 'FAILED (exit %s):\n%s\n' "$?" "$(tail -n 40 "$scratch/output")"
      failed=$((failed + 1))
    fi
  done
}

# Puts "number|kind|text" lines on stdout: kind is command, notest or wrong; number is the block's first line.
commands_of_markdown() {
  awk '
    function finish() { if (command != "") print block "|command|" command; command = "" }
    /^[ \t]*```/ {
      if (fenced) { finish(); fenced = 0; next }
      fenced = 1; block = FNR; info = $0; sub(/^[ \t]*`+[ \t]*/, "", info)
      console = info ~ /^console([ \t]|$)/
      if (console && info ~ /^console[ \t]+notest/) {
        console = 0; sub(/^console[ \t]+notest[ \t]*/, "", info)
        print block "|" (info == "" ? "wrong|notest without a reason" : "notest|" info)
      } else if (info ~ /^(sh|bash|shell|zsh)([ \t]|$)/) print block "|wrong|use ```console, so that the examples are run"
      next
    }
    fenced && console {
      line = $0
      if (continued) { sub(/^> /, "", line); command = command " " line }
      else if (line ~ /^[ \t]*\$ /) { finish(); sub(/^[ \t]*\$ /, "", line); command = line }
      else next
      continued = sub(/[ \t]*\\$/, "", command)
    }
    END { if (fenced) print block "|wrong|the block never ends" }
  ' "$1"
}

# The same of a help page: the indented lines of its Examples section, "#" lines aside.
commands_of_help() {
  awk '
    tolower($0) ~ /^examples:?[ \t]*$/ { inside = 1; next }
    /^[^ \t]/ { inside = 0 }
    inside && /[^ \t]/ {
      line = $0; sub(/^[ \t]+/, "", line); sub(/^\$ /, "", line)
      command = continued ? command " " line : line
      if (continued = sub(/[ \t]*\\$/, "", command)) next
      if (command !~ /^#/) print NR "|command|" command
    }
  '
}

subcommands_of_help() {
  awk '
    tolower($0) ~ /^subcommands:?[ \t]*$/ { inside = 1; next }
    /^[^ \t]/ { inside = 0 }
    inside && /^  [a-z]/ { print $1 }
  '
}

# run_all WHERE: takes "number|kind|text" lines, groups commands by number.
run_all() {
  local where=$1 number kind text previous=
  : >"$scratch/block"
  while IFS='|' read -r number kind text; do
    if [ "$number" != "$previous" ] && [ -s "$scratch/block" ]; then
      run_block "$where:$previous" <"$scratch/block"
      : >"$scratch/block"
    fi
    previous=$number
    case $kind in
      command) printf '%s\n' "$text" >>"$scratch/block" ;;
      notest)
        printf '%s:%s: not run: %s\n' "$where" "$number" "$text"
        skipped=$((skipped + 1))
        ;;
      *)
        printf 'FAILED %s:%s: %s\n' "$where" "$number" "$text"
        failed=$((failed + 1))
        ;;
    esac
  done
  if [ -s "$scratch/block" ]; then run_block "$where:$previous" <"$scratch/block"; fi
}

run_help() {
  local program=$1 page=("$1")
  shift
  page+=("$@" --help)
  local help
  help=$("${page[@]}" </dev/null) || {
    printf 'FAILED %s\n' "${page[*]}"
    failed=$((failed + 1))
    return
  }
  commands_of_help <<<"$help" >"$scratch/commands"
  if [ ! -s "$scratch/commands" ]; then
    printf 'FAILED %s: has no Examples section\n' "${page[*]}"
    failed=$((failed + 1))
  fi
  run_all "$(basename "$program") ${page[*]:1}" <"$scratch/commands"
  local name
  [ $# -gt 0 ] || for name in $(subcommands_of_help <<<"$help"); do run_help "$program" "$name"; done
}

mode=${1:-}
shift || true
case $mode in
  markdown)
    for file in "$@"; do
      commands_of_markdown "$file" >"$scratch/commands"
      run_all "$(basename "$file")" <"$scratch/commands"
    done
    ;;
  help)
    for program in "$@"; do run_help "$program"; done
    ;;
  *)
    echo "usage: run_examples.sh markdown FILE... | help PROGRAM" >&2
    exit 2
    ;;
esac

echo "$passed passed, $failed failed, $skipped not run"
if [ $((passed + failed)) -eq 0 ]; then
  echo "no example was found"
  exit 1
fi
[ "$failed" -eq 0 ]

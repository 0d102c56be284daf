#!/bin/bash
# Runs each libFuzzer program of build-fuzz for SECONDS_EACH seconds (default 60) on its corpus, then prints which share of
# each source file's lines all of them reached. A finding ends the script with 1; its input is left in build-fuzz/findings.
#
# Recorded inputs lie in tests/fuzz/corpus/NAME; what a run discovers goes to build-fuzz/corpus/NAME.
set -euo pipefail
source "$(dirname "$0")/say.sh"

shopt -s nullglob
targets=()
for program in build-fuzz/fuzz_*; do [[ -x $program && -f $program ]] && targets+=("$program"); done
[[ ${#targets[@]} -gt 0 ]] || die "build-fuzz has no fuzz_* program: tests/fuzz/*_fuzz.cc make them"

seconds=${SECONDS_EACH:-60}
mkdir -p build-fuzz/findings build-fuzz/profile
for program in "${targets[@]}"; do
  name=${program#build-fuzz/fuzz_}
  found=build-fuzz/corpus/$name
  mkdir -p "$found"
  recorded=()
  if [[ -d tests/fuzz/corpus/$name ]]; then recorded=("tests/fuzz/corpus/$name"); fi
  say "Fuzzing $name for $seconds s"
  log=build-fuzz/$name.log
  if ! LLVM_PROFILE_FILE=build-fuzz/profile/$name.profraw "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build-fuzz/findings/$name-" "$found" "${recorded[@]}" >"$log" 2>&1; then
    tail -40 "$log" >&2
    die "a finding in $name: its input is in build-fuzz/findings; it becomes a test and a file of tests/fuzz/corpus/$name"
  fi
  sed -nE 's/^#.*DONE +/  /p; s/^(Done .*)/  \1/p' "$log"
done

say "Lines reached"
llvm-profdata-14 merge -o build-fuzz/profile/all.profdata build-fuzz/profile/*.profraw
objects=()
for program in "${targets[@]:1}"; do objects+=(-object "$program"); done
llvm-cov-14 report "${targets[0]}" "${objects[@]}" -instr-profile=build-fuzz/profile/all.profdata \
  -ignore-filename-regex='(/usr/|tests/)' -show-functions=false -show-region-summary=false -show-branch-summary=false

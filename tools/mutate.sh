#!/bin/bash
# Breaks the code on purpose, one way at a time, and checks that the test which claims to guard it notices.
#
#   tools/mutate.sh [NAME...]      # names of tests/mutations/NAME.patch; default: all
#
# The format of a patch is in tests/mutations/README.md. The work happens in a copy of the tree (build-mutate/), with a
# build folder of its own; ccache makes all but the first run cheap. A row of the table says
#
#   caught     the named test failed, crashed or did not end in time: as it must
#   SURVIVED   the named test still passed: it does not guard what it claims to
#   STALE      the patch no longer applies
#   BROKEN     it does not compile, or its header is wrong, or its test does not pass without the patch
#
# and the script ends with 1 unless all rows say caught.
set -euo pipefail
source "$(dirname "$0")/say.sh"

root=$PWD
copy=$root/build-mutate
limit=${MUTATE_TIMEOUT:-120}
export CCACHE_BASEDIR=$copy CCACHE_NOHASHDIR=1

if [[ $# -gt 0 ]]; then patches=("${@/%/.patch}"); patches=("${patches[@]/#/tests/mutations/}"); else
  mapfile -t patches < <(find tests/mutations -name '*.patch' | sort)
fi
[[ ${#patches[@]} -gt 0 ]] || die "tests/mutations has no patch"

# Brings file $1 of the copy to the state of the tree; what is equal keeps its time stamp, so that Ninja leaves it alone.
refresh() {
  if ! cmp -s "$root/$1" "$copy/$1"; then
    mkdir -p "$(dirname "$copy/$1")"
    cp "$root/$1" "$copy/$1"
  fi
}

# The copy holds what git tracks and what it would track; a file that has gone from the tree goes from the copy.
refresh_all() {
  local file
  mkdir -p "$copy"
  git ls-files -co --exclude-standard -z | while IFS= read -r -d '' file; do
    if [[ -f $file ]]; then printf '%s\0' "$file"; fi
  done | sort -z >"$copy/.files.new"
  if [[ -f $copy/.files ]]; then
    comm -z -23 "$copy/.files" "$copy/.files.new" | while IFS= read -r -d '' file; do rm -f "$copy/$file"; done
  fi
  mv "$copy/.files.new" "$copy/.files"
  while IFS= read -r -d '' file; do refresh "$file"; done <"$copy/.files"
}

header() { sed -nE "/^(diff|---) /q; s/^# *$2: *(.*)$/\1/p" "$1" | head -1; }

# Applies patch $1 to the copy. Without the ceiling git would take the clone around the copy for the repository.
apply() { GIT_CEILING_DIRECTORIES=$root git -C "$copy" apply "$@"; }

build() { cmake --build "$copy/build" -j "${JOBS:-$(nproc)}" --target "$@" >"$copy/build.log" 2>&1; }

# Runs the test line $1 up to $2 times; succeeds if every run passed.
passes() {
  local command=() run
  read -ra command <<<"$1"
  for ((run = 0; run < $2; run++)); do
    (cd "$copy/build" && timeout -k 5 "$limit" "./${command[0]}" "${command[@]:1}") >"$copy/test.log" 2>&1 </dev/null || return 1
  done
}

# Whether the test line $1 selects any test: a filter with a spelling mistake would pass with nothing run.
selects() {
  local command=()
  read -ra command <<<"$1"
  (cd "$copy/build" && "./${command[0]}" --gtest_list_tests "${command[@]:1}") 2>/dev/null | grep -q '^  '
}

declare -A baseline=()
# Prints the verdict on patch $1, with the reason after a colon.
judge() {
  local patch=$1 test program repeat
  test=$(header "$patch" test)
  repeat=$(header "$patch" repeat)
  program=${test%% *}
  [[ -n $test && -n $(header "$patch" breaks) ]] || { verdict="BROKEN: the header needs '# breaks:' and '# test:'"; return; }
  apply --check "$root/$patch" 2>"$copy/apply.log" || { verdict="STALE: $(head -1 "$copy/apply.log")"; return; }
  if [[ -z ${baseline[$test]:-} ]]; then
    build "$program" || { verdict="BROKEN: $program does not build without the patch, see build-mutate/build.log"; return; }
    selects "$test" || { verdict="BROKEN: its test line selects no test"; return; }
    passes "$test" 1 || { verdict="BROKEN: its test does not pass without the patch, see build-mutate/test.log"; return; }
    baseline[$test]=good
  fi
  apply "$root/$patch"
  if ! build "$program"; then
    verdict="BROKEN: it does not compile, see build-mutate/build.log"
  elif passes "$test" "${repeat:-1}"; then
    verdict="SURVIVED: $test still passes"
  else
    verdict=caught
  fi
  while IFS= read -r file; do refresh "$file"; done < <(sed -nE 's#^(---|\+\+\+) [ab]/([^[:space:]]+).*#\2#p' "$patch" | sort -u)
}

say "Copying the tree to build-mutate and configuring it"
refresh_all
if [[ ! -f $copy/build/build.ninja ]]; then
  cmake -S "$copy" --preset release >"$copy/build.log" 2>&1 || { cat "$copy/build.log" >&2; die "the copy could not be configured"; }
fi

failed=0
say "${#patches[@]} mutations"
for patch in "${patches[@]}"; do
  [[ -r $patch ]] || die "$patch is not there"
  start=$SECONDS
  judge "$patch"
  [[ $verdict == caught ]] || failed=$((failed + 1))
  printf '%-40s %4d s  %s\n' "$(basename "$patch" .patch)" $((SECONDS - start)) "$verdict"
done
[[ $failed -eq 0 ]] || die "$failed of ${#patches[@]} mutations were not caught"
say "All ${#patches[@]} mutations were caught"

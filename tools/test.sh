#!/bin/bash
# Runs the tests of a preset that tools/build.sh has built.
#
#   tools/test.sh PRESET fast|all [CTEST ARGUMENT...]
#
# fast leaves out what is labelled slow. TEST_JOBS tests run at once (default 2).
set -euo pipefail
source "$(dirname "$0")/say.sh"

preset=${1:?which preset: see CMakePresets.json}
which=${2:?fast or all}
shift 2
dir=build
[[ $preset == release ]] || dir=build-$preset
case "$which" in
  fast) select=(-LE '^slow$') ;;
  all) select=() ;;
  *) die "say fast or all, not '$which'" ;;
esac

wrap=()
if [[ $preset == tsan ]] && setarch -R true 2>/dev/null; then wrap=(setarch -R); fi
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/tsan.supp}
say "Running the $which tests of $dir"
exec "${wrap[@]}" ctest --test-dir "$dir" --output-on-failure --no-tests=error -j "${TEST_JOBS:-2}" "${select[@]}" "$@"

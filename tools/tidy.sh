#!/bin/bash
# Runs clang-tidy (checks: .clang-tidy) over the sources of src/ that build/ is configured for; a finding is a failure.
# A file that was clean is checked again only after it, a header or a setting changed.
#
#   tools/tidy.sh [FILE...]        # default: every file of src/
set -euo pipefail
source "$(dirname "$0")/say.sh"

if [[ $# -gt 0 ]]; then files=("$@"); else mapfile -t files < <(find src -name '*.cc' | sort); fi
say "clang-tidy: ${#files[@]} files"
mkdir -p build/tidy
# What every file's verdict depends on: settings and all headers.
context=$(cat .clang-tidy $(find include src -name '*.h' | sort) | sha256sum)

check() {
  local file=$1 context=$2 mark
  mark=build/tidy/$(echo "$context $(sha256sum "$file")" | sha256sum | cut -c1-32)
  if [[ -f $mark ]]; then return 0; fi
  echo "  $file"
  # The database names GCC's options; Clang is told to ignore those that it does not know.
  clang-tidy-14 -p build --quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-ignored-optimization-argument "$file" 2> >(grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header' >&2) &&
    touch "$mark"
}
export -f check
printf '%s\0' "${files[@]}" | xargs -0 -P "${JOBS:-$(nproc)}" -I{} bash -c 'check "$1" "$2"' _ {} "$context" ||
  die "clang-tidy found something: see above"

#!/bin/bash
# Formats the C++ sources in place, or with --check says which are not formatted and ends with 1.
set -euo pipefail
source "$(dirname "$0")/say.sh"

mapfile -d '' files < <(find include src tests bench python -name '*.cc' -print0 -o -name '*.h' -print0 2>/dev/null | sort -z)
if [[ ${1:-} != --check ]]; then
  say "Formatting ${#files[@]} files"
  clang-format-14 -i "${files[@]}"
  exit 0
fi

say "Checking the format of ${#files[@]} files"
# One line a place is too much: say which files, and how many places in each.
if ! wrong=$(clang-format-14 --dry-run -Werror "${files[@]}" 2>&1); then
  sed -nE 's/^([^:]+):[0-9]+:[0-9]+: error: .*/\1/p' <<<"$wrong" | sort | uniq -c >&2
  die "not formatted as .clang-format says: run \`make format\`"
fi

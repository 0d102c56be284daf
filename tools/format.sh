#!/bin/bash
# Formats the C++ sources in place, or with --check says which are not formatted and ends with 1.
set -euo pipefail
source "$(dirname "$0")/say.sh"

mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run -Werror); fi
mapfile -d '' files < <(find include src tests bench -name '*.cc' -print0 -o -name '*.h' -print0 2>/dev/null | sort -z)
say "clang-format ${mode[0]}: ${#files[@]} files"
clang-format-14 "${mode[@]}" "${files[@]}" || die "not formatted as .clang-format says: run \`make format\`"

#!/bin/bash
# Checks who includes whom. CMakeLists.txt is the only list of layers: `kvist_folder(wire pool base)` says that src/wire
# may include itself, src/pool, src/base and include/kvist, and nothing else. A public header includes only public headers
# and the standard library.
set -euo pipefail
source "$(dirname "$0")/say.sh"

failures=0
complain() {
  echo "$1" >&2
  failures=$((failures + 1))
}

known=" "
while read -r folder uses; do
  known+="$folder "
  [[ -d src/$folder ]] || continue
  allowed="kvist|$folder${uses:+|${uses// /|}}"
  # Every quoted include names its folder, so the first part of the path is the layer.
  while IFS= read -r line; do
    complain "$line: src/$folder may include only ${allowed//|/ }"
  done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "src/$folder" | grep -vE "\"($allowed)/" || true)
done < <(sed -nE 's/^kvist_folder\(([a-z ]+)\)$/\1/p' CMakeLists.txt)
say "Layers:$known"

for dir in src/*/; do
  name=$(basename "$dir")
  [[ $known == *" $name "* ]] || complain "src/$name has no kvist_folder() line in CMakeLists.txt, so it has no layer"
done

c_headers='assert|errno|inttypes|limits|stdbool|stddef|stdint|stdlib|string'
while IFS= read -r line; do
  complain "$line: a public header includes only \"kvist/...\" and the standard library"
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include' include/kvist |
  grep -vE "\"kvist/[a-z_]+\.h\"|<[a-z_]+>|<($c_headers)\.h>" || true)

# Each of these costs seconds in every file that includes it.
while IFS= read -r line; do
  complain "$line: include this in a .cc file only"
done < <(grep -rnE '#[[:space:]]*include[[:space:]]*<(CLI/|httplib|nlohmann/)' --include='*.h' src include || true)

[[ $failures -eq 0 ]] || die "$failures includes cross a layer"

#!/bin/bash
# Writes the pages of docs/ that are made from the program's own tables. `make test` fails where one of them is stale.
#
#   tools/docs.sh [KVIST]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/say.sh

kvist=${1:-build/kvist}
[[ -x $kvist ]] || die "there is no $kvist; run \`make build\`"
write() {
  "$kvist" manual "$1" >"$2.new"
  mv "$2.new" "$2"
  say "Wrote $2"
}
write settings docs/configuration.md
write metrics docs/metrics.md

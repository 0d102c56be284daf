#!/bin/bash
# Measures Kvist and Mooncake Store on this machine, in turns, and prints the table (tools/bench_peers.py does both).
#
#   ROUNDS=3 PEERS=../shared/peers tools/bench_peers.sh
#
# The peer's benchmark is not part of this repository: PEERS names the folder it lies in. Its packages come into a
# virtual environment of their own, pinned.
set -euo pipefail
source "$(dirname "$0")/say.sh"

peers=${PEERS:-../shared/peers}
[[ -r $peers/mooncake_store_bench.py ]] || die "skipped: $peers/mooncake_store_bench.py is not there; set PEERS to its folder"
tools/bootstrap.sh python peers
tools/venv.sh build/venv-peers tools/requirements-peers.txt
say "Measuring in turns; both are single clients on an otherwise idle machine"
exec build/venv-peers/bin/python tools/bench_peers.py --kvist build/kvist --peer "$peers/mooncake_store_bench.py" --rounds "${ROUNDS:-3}" --seconds 2

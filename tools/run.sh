#!/bin/bash
# The demonstration behind `make run`: a node, an agent workload (many sessions that grow turn by turn, share system
# prompts, pause and come back), and several client processes that replay it with real bytes through the node's pool. The
# replay compares every byte and prints the summary; this script only starts and stops what takes part.
#
#   TRACE=FILE MEMORY=SIZE CLIENTS=N tools/run.sh
#
# TRACE     a request trace to replay instead of the generated workload
# MEMORY    the pool's size; default: a quarter of the memory available here, at most 1GiB
# CLIENTS   client processes; default 4
set -euo pipefail
source "$(dirname "$0")/say.sh"

kvist=build/kvist
[[ -x $kvist ]] || die "$kvist is not there: run \`make build\`"
clients=${CLIENTS:-4}
trace=${TRACE:-}
[[ -z $trace || -r $trace ]] || die "TRACE=$trace cannot be read"

# What may be used here: the machine's available memory, or less where a cgroup of this process says so.
available_mib() {
  local mib limit
  mib=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
  limit=$(cat "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/memory.max" 2>/dev/null || echo max)
  if [[ $limit =~ ^[0-9]+$ && $((limit >> 20)) -lt $mib ]]; then mib=$((limit >> 20)); fi
  echo "$mib"
}
memory=${MEMORY:-}
if [[ -z $memory ]]; then
  mib=$(($(available_mib) / 4))
  memory=$((mib < 1024 ? mib : 1024))MiB
fi

# A Unix socket's path is limited to 107 bytes, so it does not lie in the clone, which may be deep.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/kvist-run.XXXXXX")
node=
finish() {
  local status=$?
  if [[ -n $node ]] && kill -0 "$node" 2>/dev/null; then
    kill -TERM "$node"
    for _ in {1..100}; do
      kill -0 "$node" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$node" 2>/dev/null || true
  fi
  rm -rf "$scratch"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ -z $trace ]]; then
  say "Writing an agent workload"
  trace=$scratch/agents.jsonl.gz
  "$kvist" workload --out "$trace" || die "the workload could not be written"
fi

say "Starting a node with $memory"
# No admin address: the demonstration must run where even the loopback interface is down.
"$kvist" node --memory "$memory" --socket "$scratch/node.sock" --admin none >"$scratch/ready" 2>"$scratch/node.log" &
node=$!
# The node prints one line when clients can connect.
for _ in {1..200}; do
  [[ ! -s $scratch/ready ]] || break
  kill -0 "$node" 2>/dev/null || { node=; cat "$scratch/node.log" >&2; die "the node did not start"; }
  sleep 0.1
done
[[ -s $scratch/ready ]] || { cat "$scratch/node.log" >&2; die "the node was not ready within 20 s"; }
cat "$scratch/ready"

say "Replaying through $clients client processes"
"$kvist" replay "$trace" --socket "$scratch/node.sock" --clients "$clients" || die "the replay failed"

say "Stopping the node"
kill -TERM "$node"
if wait "$node"; then node=; else node=; cat "$scratch/node.log" >&2; die "the node did not end cleanly"; fi

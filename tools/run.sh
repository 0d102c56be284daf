#!/bin/bash
# The demonstration behind `make run`: an agent workload (many sessions that grow turn by turn, share system prompts, pause and
# come back), and several client processes that replay it with real bytes through a node whose DRAM is a tenth of it and that
# has a disk tier below. In the middle the node is killed and started again. The replay compares every byte, starts and ends
# the node, and prints the summary; this script chooses the sizes.
#
#   TRACE=FILE MEMORY=SIZE DISK=SIZE CLIENTS=N tools/run.sh
#
# TRACE     a request trace to replay instead of the generated workload
# MEMORY    the pool's size; default: a quarter of the memory available here, at most 384MiB
# DISK      the disk tier's; default: a third of what is free in $TMPDIR (or /tmp), at most 2GiB; 0: none
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
  memory=$((mib < 384 ? mib : 384))MiB
fi
disk=${DISK:-}
if [[ -z $disk ]]; then
  mib=$(($(df -Pm "${TMPDIR:-/tmp}" | awk 'NR == 2 { print $4 }') / 3))
  disk=$((mib < 2048 ? mib : 2048))MiB
  if ((mib < 256)); then
    say "No disk tier: ${TMPDIR:-/tmp} has too little room for one; set TMPDIR to a folder on a disk"
    disk=0
  fi
fi

scratch=$(mktemp -d "${TMPDIR:-/tmp}/kvist-run.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ -z $trace ]]; then
  say "Writing an agent workload"
  trace=$scratch/agents.jsonl.gz
  "$kvist" workload --out "$trace" || die "the workload could not be written"
fi

options=(--memory "$memory" --clients "$clients")
below="and no disk tier"
if [[ $disk != 0 ]]; then
  options+=(--disk "$disk" --restart)
  below="and $disk of disk below it, which is killed and started again in the middle"
fi
say "Replaying through $clients client processes and a node with $memory of DRAM $below"
"$kvist" replay "$trace" "${options[@]}" || die "the replay failed"

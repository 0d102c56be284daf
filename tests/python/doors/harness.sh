#!/bin/bash
# Runs the vLLM connector through an end-to-end harness for KV connectors that is not part of this repository: real engines,
# with a fresh and empty node for each scenario. Without that harness it is skipped, saying so.
#
#   tests/python/doors/harness.sh [-m inproc|three] [-M MODEL] [-l sync|async] [-o ROW] [SCENARIO...]
#
# SCENARIO: equal second-engine restart concurrent abort overhead ttft kill stop restart-node (the last three are faults of
# the node while an engine loads); default all but ttft. -M: tiny (default) or smollm2. -o: a file that gets a line a scenario.
# PYTHON: an interpreter that has vLLM, default build/venv-vllm/bin/python. KVIST_HARNESS: where the harness lies. Beside what
# the harness checks by itself, hits must be all full blocks but the last token's, and come back after the node.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
harness=${KVIST_HARNESS:-$root/../shared/engines/vllm_cpu_harness.py}
python=${PYTHON:-$root/build/venv-vllm/bin/python}
export PYTHONPATH=${PYTHONPATH:-$root/build/python}
kvist=${PYTHONPATH%%:*}/kvist/bin/kvist

mode=inproc model=tiny load=auto rows=/dev/null
while getopts m:M:l:o: option; do
  case $option in
    m) mode=$OPTARG ;;
    M) model=$OPTARG ;;
    l) load=$OPTARG ;;
    o) rows=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
if [[ ! -f $harness ]]; then
  echo "skipped: the harness is not there ($harness)"
  exit 77
fi
"$python" -c 'import vllm' 2>/dev/null || {
  echo "skipped: $python has no vLLM: tools/engine_venv.sh vllm makes build/venv-vllm, or set PYTHON"
  exit 77
}
[[ $# -gt 0 ]] || set -- equal second-engine restart concurrent abort overhead kill stop restart-node

folder=$(mktemp -d)
node=
end_node() {
  if [[ -n $node ]]; then
    kill -CONT "$node" 2>/dev/null || true
    kill "$node" 2>/dev/null || true
    wait "$node" 2>/dev/null || true
  fi
  if [[ -s $folder/pid ]]; then kill "$(cat "$folder/pid")" 2>/dev/null || true; fi # the one that a fault started
  rm -f "$folder/pid"
  node=
}
trap 'end_node; rm -rf "$folder"' EXIT

# Ends with 1 unless the hits in the harness's line are what they must be. PROMPTS as the harness makes them: tails that grow
# by 7 tokens behind a shared head; in turn, the engine itself has what the head's full blocks hold after the first.
check='
import json, sys
row, name, n, shared, tail, block = json.loads(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
lengths = [shared + tail + 7 * i for i in range(n)]
full = [(length - 1) // block * block for length in lengths]
own = (shared // block) * block
due = full[0] + sum(length - own for length in full[1:])
wrong = []
if name == "equal":
    wrong += [k for k in ("hit_warm", "hit_warm-batched") if row.get(k) != due]
elif name in ("second-engine", "restart"):
    wrong += ["hit"] if row.get("hit") != due else []
elif name in ("kill", "stop", "restart-node") and row.get("rounds"):
    due = full[0] + sum(length - own for length in full[1:])
    wrong += ["the last round"] if name != "kill" and row["rounds"][-1]["hit"] != due else []
    wrong += ["the first round"] if row["rounds"][0]["hit"] != due else []
if row["ok"] and wrong:
    sys.exit(f"hits of {wrong} are not {due}")
'

failed=0
for name; do
  rm -f "$folder/k.sock"
  "$kvist" node --memory 1GiB --socket "$folder/k.sock" --admin none --log-level warn >"$folder/ready" 2>>"$folder/node.log" &
  node=$!
  for _ in $(seq 200); do [[ -s $folder/ready ]] && break; sleep 0.1; done
  extra="{\"socket\": \"$folder/k.sock\", \"load\": \"$load\"}"
  more=() scenario=$name n=6
  case $name in
    kill) scenario=faults n=8 more=(--rounds 3 --fault-cmd "kill -9 $node") ;;
    stop) scenario=faults n=8 more=(--rounds 4 --fault-cmd "kill -STOP $node; sleep 15; kill -CONT $node; sleep 10") ;;
    restart-node)
      scenario=faults n=8
      more=(--rounds 4 --fault-cmd "kill -9 $node; sleep 1; $kvist node --memory 1GiB --socket $folder/k.sock --admin none >/dev/null 2>&1 & echo \$! > $folder/pid; sleep 12")
      ;;
    ttft) n=0 more=(--context 3896 --turn 32 --min-ratio 10 --timeout 170) ;; # few new tokens: the rest of a turn is computed either way
    concurrent | abort) more=(--blocks 60 --max-len 1024 --shared 200 --tokens 60) ;;
  esac
  [[ $mode == three ]] || more+=(--inproc)
  status=0
  row=$("$python" "$harness" --connector KvistConnector --module kvist.vllm --path "${PYTHONPATH%%:*}" --model "$model" \
    --extra "$extra" --scenario "$scenario" "${more[@]}" 2>"$folder/err" | tail -n 1) || status=$?
  if [[ -z $row ]]; then
    tail -n 5 "$folder/err"
    status=1
  elif ((n)) && ! "$python" -c "$check" "$row" "$name" $n 400 45 32; then
    status=1
  fi
  echo "$([[ $status -eq 0 ]] && echo passed || echo FAILED) $name $mode $model $load: $row" | tee -a "$rows"
  [[ $status -eq 0 ]] || failed=1
  end_node
done
exit $failed

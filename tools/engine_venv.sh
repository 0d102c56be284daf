#!/bin/bash
# Makes build/venv-ENGINE, the virtual environment in which a real engine runs, from tools/requirements-ENGINE.txt: once,
# and again when that list changes. Each list is complete, so pip chooses nothing (--no-deps).
#
#   tools/engine_venv.sh vllm|sglang|lmcache|mooncake
#
# It takes at most VENV_SECONDS (default 300; 900 for SGLang, which is twice as large); what pip has downloaded by then it keeps
# for the next try.
# Ends with 77, saying what is missing and what to do, where the environment cannot be made: its callers skip then.
set -euo pipefail
source "$(dirname "$0")/say.sh"

engine=${1:?which engine: vllm, sglang, lmcache or mooncake}
list=tools/requirements-$engine.txt
[[ -r $list ]] || die "there is no $list; the engines are: $(printf '%s\n' tools/requirements-*.txt | sed -nE 's/.*-(vllm|sglang|lmcache|mooncake)\.txt/\1/p' | paste -sd ' ')"
dir=build/venv-$engine
seconds=300
[[ $engine != sglang ]] || seconds=900
seconds=${VENV_SECONDS:-$seconds}
stamp=$(sha256sum <"$list")
if [[ -f $dir/.stamp && $(<"$dir/.stamp") == "$stamp" ]]; then exit 0; fi

skip() {
  echo "skipped: $*"
  exit 77
}

tools/bootstrap.sh python || skip "there is no python3 with venv here, and it could not be installed (see above)"
total=$(grep -cE '^[A-Za-z]' "$list")
say "Making $dir: $total packages of $list, in at most $seconds s"
rm -rf "$dir"
mkdir -p build
/usr/bin/python3 -m venv "$dir" || skip "/usr/bin/python3 cannot make a virtual environment in $dir"

log=$(mktemp "${TMPDIR:-/tmp}/kvist-venv.XXXXXX")
pip=
finish() {
  if [[ -n $pip ]]; then kill "$pip" 2>/dev/null || true; fi
  rm -f "$log"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
timeout -k 10 "$seconds" "$dir/bin/pip" --no-input --disable-pip-version-check install --no-deps --progress-bar off \
  --requirement "$list" </dev/null >"$log" 2>&1 &
pip=$!

# One line that moves on a terminal; elsewhere one every ten seconds.
progress() {
  local found step
  found=$(grep -c '^Collecting ' "$log" || true)
  step="$found of $total packages found"
  if grep -q '^Installing collected' "$log"; then
    step="installing, $({ du -sm "$dir" 2>/dev/null || true; } | cut -f1) MiB so far" # files come and go under it
  fi
  if [[ -t 1 ]]; then printf '\r\033[K    %3d s  %s' "$SECONDS" "$step"; else printf '    %3d s  %s\n' "$SECONDS" "$step"; fi
}
SECONDS=0
while kill -0 "$pip" 2>/dev/null; do
  if [[ -t 1 ]] || ((SECONDS % 10 == 0)); then progress; fi
  sleep 1
done
status=0
wait "$pip" || status=$?
pip=
if [[ -t 1 ]]; then printf '\r\033[K'; fi
if [[ $status -eq 0 ]]; then
  echo "$stamp" >"$dir/.stamp"
  say "$dir is ready after $SECONDS s"
  exit 0
fi

rm -rf "$dir"
if [[ $status -eq 124 || $status -eq 137 ]]; then
  skip "$list could not be installed within $seconds s; try again (what was downloaded is kept), or with VENV_SECONDS=900"
fi
if grep -qE '(No matching distribution found|Could not find a version).* torch==' "$log"; then
  skip "pip finds no $(sed -nE 's/^(torch==.*)/\1/p' "$list"), PyTorch's build for processors. PyPI does not have it: name an index" \
    "that does, as by PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu in front of the same command (pip's option --extra-index-url)," \
    "or a folder with the wheel by PIP_FIND_LINKS"
fi
grep -E '^ *ERROR' "$log" | tail -3 >&2 || tail -3 "$log" >&2
skip "pip could not install $list (see above): check the network and pip's settings, then try again"

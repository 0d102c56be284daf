#!/bin/bash
# Proves that the wheel is enough: makes a bare Debian 12 with python3-venv and nothing else (no compiler, no numpy), installs
# dist/kvist-*.whl there without a network, as a user, and runs what a newcomer runs: the doctor, the command, and the first
# examples of docs/python.md.
#
#   sudo tools/clean_wheel.sh [--keep]
#
# What it needs: tools/clean_debian.sh.
set -euo pipefail
source "$(dirname "$0")/say.sh"
source tools/clean_debian.sh

keep=no
case "${1:-}" in
  '') ;;
  --keep) keep=yes ;;
  *) die "unknown option '$1'; there is --keep" ;;
esac
wheel=$(ls dist/kvist-*.whl 2>/dev/null) || die "there is no wheel in dist/: run \`make wheel\`"
make_debian build/clean-wheel python3-venv
cp "$wheel" "$machine/home/newcomer/"

# The guide's examples up to the first that needs numpy. Without an admin address: there is no loopback interface either.
awk '/^import numpy/ { exit } /^```python$/ { on = 1; next } /^```$/ { on = 0 } on' docs/python.md |
  sed 's/kvist.Node(memory="256MiB")/kvist.Node(memory="256MiB", admin=None)/' >"$logs/guide.py"
grep -q 'space.prefix' "$logs/guide.py" || die "docs/python.md has no example before numpy"
cp "$logs/guide.py" "$machine/home/newcomer/guide.py"

say "Installing and running it there, without a network"
enter_debian newcomer "
  set -ex
  python3 -m venv try
  try/bin/pip install --no-index $(basename "$wheel")
  try/bin/python -m kvist.doctor || true
  try/bin/kvist version
  try/bin/python -W error guide.py
  if try/bin/python -c 'import numpy' 2>/dev/null; then exit 1; fi
  echo GUIDE RAN
" --net >"$logs/run.log" 2>&1 || { tail -40 "$logs/run.log" >&2; die "see build/clean-wheel/run.log"; }
grep -q '^GUIDE RAN$' "$logs/run.log" || die "it did not reach the end: see build/clean-wheel/run.log"
say "A bare Debian 12 with python3-venv is enough"

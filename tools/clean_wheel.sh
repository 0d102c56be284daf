#!/bin/bash
# Proves that the wheel is enough: makes a bare Debian 12 with python3-venv and nothing else (no compiler, no numpy), installs
# dist/kvist-*.whl there without a network, as a user, and runs what a newcomer runs: the doctor, the command, and the first
# examples of docs/python.md.
#
#   sudo tools/clean_wheel.sh [--keep]
#
# Needs root, mmdebstrap and an apt that can reach bookworm, like tools/clean_machine.sh.
set -euo pipefail
source "$(dirname "$0")/say.sh"

keep=no
[[ ${1:-} != --keep ]] || keep=yes
[[ $EUID -eq 0 ]] || die "making and entering the other system needs root: use sudo"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"
wheel=$(ls dist/kvist-*.whl 2>/dev/null) || die "there is no wheel in dist/: run \`make wheel\`"

logs=$PWD/build/clean-wheel
rm -rf "$logs"
mkdir -p "$logs"
machine=$(mktemp -d /var/tmp/kvist-wheel.XXXXXX)
clean_up() { if [[ $keep == yes ]]; then say "Kept in $machine"; else rm -rf --one-file-system "$machine"; fi; }
trap clean_up EXIT

say "Making a bare Debian 12 with python3-venv in $machine"
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  grep -E ' bookworm(-updates|-security)? ' | sort -u >"$logs/sources.list"
apt-config dump | grep -E '^Acquire::(http|https|ftp|Check-[A-Za-z-]+|Retries)[: ]' >"$logs/apt.conf" || true
mmdebstrap --quiet --variant=minbase --include=python3-venv --aptopt="$logs/apt.conf" bookworm "$machine" "$logs/sources.list" \
  >"$logs/mmdebstrap.log" 2>&1 || { cat "$logs/mmdebstrap.log" >&2; die "it could not be made"; }
chroot "$machine" useradd --create-home --shell /bin/bash newcomer
cp "$wheel" "$machine/home/newcomer/"

# The guide's examples up to the first that needs numpy. Without an admin address: there is no loopback interface either.
awk '/^import numpy/ { exit } /^```python$/ { on = 1; next } /^```$/ { on = 0 } on' docs/python.md |
  sed 's/kvist.Node(memory="256MiB")/kvist.Node(memory="256MiB", admin=None)/' >"$logs/guide.py"
grep -q 'space.prefix' "$logs/guide.py" || die "docs/python.md has no example before numpy"
cp "$logs/guide.py" "$machine/home/newcomer/guide.py"

say "Installing and running it there, without a network"
unshare --net --mount --pid --fork --kill-child bash -c '
  set -e
  mount --make-rprivate /
  mount --rbind /dev "$1/dev"
  mount --rbind /sys "$1/sys"
  mount -t proc proc "$1/proc"
  mount -t tmpfs -o mode=1777 tmp "$1/tmp"
  exec chroot "$1" su --login newcomer --command "
    set -ex
    python3 -m venv try
    try/bin/pip install --no-index $2
    try/bin/python -m kvist.doctor || true
    try/bin/kvist version
    try/bin/python -W error guide.py
    ! try/bin/python -c \"import numpy\" 2>/dev/null
    echo GUIDE RAN
  "' _ "$machine" "$(basename "$wheel")" </dev/null >"$logs/run.log" 2>&1 || { tail -40 "$logs/run.log" >&2; die "see build/clean-wheel/run.log"; }
grep -q '^GUIDE RAN$' "$logs/run.log" || die "it did not reach the end: see build/clean-wheel/run.log"
say "A bare Debian 12 with python3-venv is enough"

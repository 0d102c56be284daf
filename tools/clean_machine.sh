#!/bin/bash
# Proves that a bare Debian 12 is enough: makes one in a folder (minbase, git, make, ca-certificates: no compiler, no
# Python, no sudo), clones this checkout's HEAD into it, and runs there what a newcomer would run.
#
#   sudo tools/clean_machine.sh [--keep]
#
# Needs root and mmdebstrap on a Debian whose apt can reach bookworm: mirrors and proxy settings are taken from there.
# Nothing outside the folder changes; mounts live in namespaces of their own. One line a step; logs stay in build/clean/.
set -euo pipefail
source "$(dirname "$0")/say.sh"

keep=no
[[ ${1:-} != --keep ]] || keep=yes
[[ $EUID -eq 0 ]] || die "making and entering the other system needs root: use sudo"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"

logs=$PWD/build/clean
rm -rf "$logs"
mkdir -p "$logs"
machine=$(mktemp -d /var/tmp/kvist-clean.XXXXXX)
clean_up() { if [[ $keep == yes ]]; then say "Kept in $machine"; else rm -rf --one-file-system "$machine"; fi; }
trap clean_up EXIT

say "Making a bare Debian 12 in $machine"
# The sources that this machine's apt uses for bookworm, whatever file and format they are written in.
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  grep -E ' bookworm(-updates|-security)? ' | sort -u >"$logs/sources.list"
[[ -s $logs/sources.list ]] || die "this machine's apt has no sources for bookworm: see apt-get indextargets"
apt-config dump | grep -E '^Acquire::(http|https|ftp|Check-[A-Za-z-]+|Retries)[: ]' >"$logs/apt.conf" || true
mmdebstrap --quiet --variant=minbase --include=git,make,ca-certificates --aptopt="$logs/apt.conf" \
  bookworm "$machine" "$logs/sources.list" >"$logs/mmdebstrap.log" 2>&1 || { cat "$logs/mmdebstrap.log" >&2; die "it could not be made"; }
cp -L /etc/resolv.conf /etc/hosts "$machine/etc/"
if [[ -d /usr/local/share/ca-certificates ]]; then cp -r /usr/local/share/ca-certificates/. "$machine/usr/local/share/ca-certificates/"; fi
chroot "$machine" useradd --create-home --shell /bin/bash newcomer
for home in root home/newcomer; do git clone --quiet --no-hardlinks "$PWD" "$machine/$home/kvist"; done
chroot "$machine" chown -R newcomer: /home/newcomer/kvist

# inside USER COMMAND: runs it in the clone of that user, with /proc, /dev and /sys as on any machine. What it starts
# dies with it.
inside() {
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount --make-rprivate /
    mount --rbind /dev "$1/dev"
    mount --rbind /sys "$1/sys"
    mount -t proc proc "$1/proc"
    mount -t tmpfs -o mode=1777 tmp "$1/tmp"
    exec chroot "$1" su --login "$2" --command "cd kvist && $3"' _ "$machine" "$1" "$2" </dev/null
}

failed=0
# step NAME EXPECTED USER COMMAND [WRAPPER...]: EXPECTED is ok, or refused: exit with an error that tells what to paste.
step() {
  local name=$1 expected=$2 user=$3 command=$4 start=$SECONDS code=0 log verdict
  shift 4
  log=$logs/$(echo "$name" | tr -cs 'a-z0-9\n' '-').log
  if [[ $# -gt 0 ]]; then
    "$@" bash -c "$(declare -f inside); machine=$machine; inside \"\$1\" \"\$2\"" _ "$user" "$command" >"$log" 2>&1 || code=$?
  else
    inside "$user" "$command" >"$log" 2>&1 || code=$?
  fi
  verdict=FAILED
  case "$expected" in
    ok) [[ $code -eq 0 ]] && verdict=ok ;;
    refused) [[ $code -ne 0 ]] && grep -q 'apt-get --no-remove -y --no-install-recommends install' "$log" && verdict=ok ;;
  esac
  [[ $verdict == ok ]] || failed=$((failed + 1))
  printf '%-34s %5d s  %-6s %s\n' "$name" $((SECONDS - start)) "$verdict" "$(grep -E 'tests passed|tests failed' "$log" | tail -1 || true)"
  if [[ $verdict != ok ]]; then tail -15 "$log" | sed 's/^/    /'; fi
}

say "Running in it"
step "bare: nothing is there yet" ok root '! command -v g++ cc clang cmake ninja python3 sudo'
step "user, packages missing: refused" refused newcomer 'make test'
step "root: make test" ok root 'make test'
step "root: make run" ok root 'make run'
step "user: make test" ok newcomer 'make test'
step "user: make run" ok newcomer 'make run'
step "root, again: make test run" ok root 'make test run'
step "user, again: make test run" ok newcomer 'make test run'
step "root, no network: make run test" ok root 'make run test' unshare --net
step "user, no network: make run test" ok newcomer 'make run test' unshare --net
step "user: make clean build install" ok newcomer 'make clean build install PREFIX=$HOME/opt && ~/opt/bin/kvist version'
[[ $failed -eq 0 ]] || die "$failed steps failed; logs are in build/clean"
say "A bare Debian 12 is enough"

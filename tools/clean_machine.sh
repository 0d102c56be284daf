#!/bin/bash
# Proves that a bare Debian 12 is enough: makes one in a folder (minbase, git, make, ca-certificates: no compiler, no
# Python, no sudo), clones this checkout's HEAD into it, and runs there what a newcomer would run.
#
#   sudo tools/clean_machine.sh [--keep] [--warm]
#
# --keep leaves the folder. --warm lends it this machine's compiler cache, and root's to the user: the same steps, sooner;
# without it the first build of each is a cold one, and its time says what a newcomer waits.
#
# One line a step; logs stay in build/clean/. What it needs: tools/clean_debian.sh.
set -euo pipefail
source "$(dirname "$0")/say.sh"
source tools/clean_debian.sh

keep=no
warm=no
for word in "$@"; do
  case "$word" in
    --keep) keep=yes ;;
    --warm) warm=yes ;;
    *) die "unknown option '$word'; there are --keep and --warm" ;;
  esac
done
make_debian build/clean git,make,ca-certificates
cp -L /etc/resolv.conf /etc/hosts "$machine/etc/"
if [[ -d /usr/local/share/ca-certificates ]]; then cp -r /usr/local/share/ca-certificates/. "$machine/usr/local/share/ca-certificates/"; fi

# Lays a fresh clone for user $1, with a compiler cache copied from $2 where that is asked for.
lay_clone() {
  local home=$machine/root
  [[ $1 == root ]] || home=$machine/home/$1
  rm -rf --one-file-system "$machine/srv/kvist"
  git clone --quiet --no-hardlinks "$PWD" "$machine/srv/kvist"
  if [[ $warm == yes && -d $2 ]]; then cp -r "$2" "$home/.cache-lent" && mkdir -p "$home/.cache" && mv "$home/.cache-lent" "$home/.cache/ccache"; fi
  chroot "$machine" chown -R "$1:" "/srv/kvist" "${home#"$machine"}"
}

failed=0
# step NAME EXPECTED USER COMMAND [UNSHARE_OPTION...]: EXPECTED is ok, or refused: exit with an error that tells what to paste.
step() {
  local name=$1 expected=$2 user=$3 command=$4 start=$SECONDS code=0 log verdict
  shift 4
  log=$logs/$(echo "$name" | tr -cs 'a-z0-9\n' '-').log
  enter_debian "$user" "cd /srv/kvist && $command" "$@" >"$log" 2>&1 || code=$?
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
lay_clone newcomer ""
step "bare: nothing is there yet" ok root '! command -v g++ cc clang cmake ninja python3 sudo'
step "user, packages missing: refused" refused newcomer 'make test'
lay_clone root "$(ccache --get-config cache_dir 2>/dev/null || true)"
for user in root newcomer; do
  step "$user: make run" ok "$user" 'make run'
  # `make run` needs no Python, so what it configured has to notice that this installs some.
  step "$user: make test, with Python" ok "$user" 'make test && test -e build/python/kvist/_kvist.abi3.so'
  step "$user, again: make run test" ok "$user" 'make run test'
  step "$user, no network: make run test" ok "$user" 'make run test' --net
  if [[ $user == root ]]; then lay_clone newcomer "$machine/root/.cache/ccache"; fi
done
step "newcomer: make clean install" ok newcomer 'make clean install PREFIX=$HOME/opt && ~/opt/bin/kvist version'
[[ $failed -eq 0 ]] || die "$failed steps failed; logs are in build/clean"
say "A bare Debian 12 is enough"

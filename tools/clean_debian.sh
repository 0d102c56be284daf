# tools/clean_debian.sh: sourced by clean_machine.sh and clean_wheel.sh: a bare Debian 12 in a folder, gone with the script.
#
#   make_debian build/NAME git,make    # the packages beside minbase: sets $logs to that folder and $machine to the system's
#
# Needs root and mmdebstrap on a Debian whose apt can reach bookworm: mirrors and proxy settings are taken from there.
# Nothing outside of the two folders changes. $keep is yes: the system stays. It has a user newcomer.

make_debian() {
  [[ $EUID -eq 0 ]] || die "making and entering the other system needs root: use sudo"
  command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"
  logs=$PWD/$1
  rm -rf "$logs"
  mkdir -p "$logs"
  machine=$(mktemp -d /var/tmp/kvist-clean.XXXXXX)
  trap drop_debian EXIT
  say "Making a bare Debian 12 with $2 in $machine"
  # The sources that this machine's apt uses for bookworm, whatever file and format they are written in.
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    grep -E ' bookworm(-updates|-security)? ' | sort -u >"$logs/sources.list" || true
  [[ -s $logs/sources.list ]] || die "this machine's apt has no sources for bookworm: see apt-get indextargets"
  apt-config dump | grep -E '^Acquire::(http|https|ftp|Check-[A-Za-z-]+|Retries)[: ]' >"$logs/apt.conf" || true
  mmdebstrap --quiet --variant=minbase --include="$2" --aptopt="$logs/apt.conf" bookworm "$machine" "$logs/sources.list" \
    >"$logs/mmdebstrap.log" 2>&1 || { cat "$logs/mmdebstrap.log" >&2; die "it could not be made"; }
  chroot "$machine" useradd --create-home --shell /bin/bash newcomer
}

drop_debian() { if [[ ${keep:-no} == yes ]]; then say "Kept in $machine"; else rm -rf --one-file-system "$machine"; fi; }

# enter_debian USER COMMAND [UNSHARE_OPTION...]: runs it there as on any machine with /proc, /dev and /sys; mounts live in a
# namespace of their own, and what it starts dies with it.
enter_debian() {
  unshare --mount --pid --fork --kill-child "${@:3}" bash -c '
    set -e
    mount --make-rprivate /
    mount --rbind /dev "$1/dev"
    mount --rbind /sys "$1/sys"
    mount -t proc proc "$1/proc"
    mount -t tmpfs -o mode=1777 tmp "$1/tmp"
    exec chroot "$1" su --login "$2" --command "$3"' _ "$machine" "$1" "$2" </dev/null
}

#!/bin/bash
# Installs the Debian packages that a step of the Makefile needs and that are missing; without any missing it does
# nothing and needs neither network nor rights.
#
#   tools/bootstrap.sh build [format] [lint] [fuzz] [python] [extension] [bench] [peers]
#
# As root it installs directly. As a user it tries `sudo -n` (which never asks), for this step only; where that cannot
# be, it prints the command to paste and ends with 1. Nothing is ever removed or upgraded (--no-remove, only missing
# packages are named), and a lock held by another apt is waited for, with a limit.
set -euo pipefail
source "$(dirname "$0")/say.sh"

packages_of() {
  case "$1" in
    build) echo g++ cmake ninja-build ccache pkgconf zlib1g-dev libxxhash-dev nlohmann-json3-dev libcli11-dev libcpp-httplib-dev libyaml-dev liburing-dev libgtest-dev ;;
    format) echo clang-format-14 ;;
    lint) echo clang-tidy-14 ;;
    fuzz) echo clang-14 libclang-rt-14-dev llvm-14 ;;
    python) echo python3 python3-venv ;;
    extension) echo python3 python3-venv libpython3-dev ;;
    bench) echo fio ;;
    peers) echo libibverbs1 libnuma1 libcurl4 ;;
    *) die "unknown group '$1'; there are: build format lint fuzz python extension bench peers" ;;
  esac
}

wanted=()
for group in "$@"; do
  read -ra more <<<"$(packages_of "$group")"
  wanted+=("${more[@]}")
done
[[ ${#wanted[@]} -gt 0 ]] || die "name at least one group: build format lint fuzz python extension bench peers"

if ! command -v dpkg-query >/dev/null; then
  # Another distribution: the compiler and CMake will say what they miss.
  say "Not a Debian system: install the equivalents of ${wanted[*]} if the build asks for them"
  exit 0
fi

installed=" $(dpkg-query -W -f='${db:Status-Status}:${Package} ' "${wanted[@]}" 2>/dev/null || true)"
missing=()
for package in "${wanted[@]}"; do
  [[ $installed == *" installed:$package "* ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3
  -o Acquire::http::Timeout=60 -o Acquire::https::Timeout=60)
if [[ $EUID -ne 0 ]]; then
  if command -v sudo >/dev/null && sudo -n env apt-get --version >/dev/null 2>&1; then
    apt=(sudo -n "${apt[@]}")
  else
    install="apt-get update && apt-get --no-remove -y --no-install-recommends install ${missing[*]}"
    {
      echo "Packages are missing, and this user may not install them without a password. Paste this, then run make again:"
      echo
      if command -v sudo >/dev/null; then echo "  sudo sh -c '$install'"; else echo "  su -c '$install'"; fi
      echo
    } >&2
    exit 1
  fi
fi

say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
# A stale or partly failed list may still do: let the installation decide.
"${apt[@]}" update </dev/null || say "The package lists could not all be refreshed; trying with the ones that are here"
"${apt[@]}" --no-remove -y --no-install-recommends install "${missing[@]}" </dev/null ||
  die "the packages could not be installed (see above). They come from Debian 12's main archive: check the network and /etc/apt, then run make again"

#!/bin/bash
# Makes a Python virtual environment from a list of pinned packages, once: it is made again only when the list changes.
#
#   tools/venv.sh build/venv tools/requirements.txt
#
# It uses Debian's own /usr/bin/python3, whatever else is in PATH.
set -euo pipefail
source "$(dirname "$0")/say.sh"

dir=${1:?which folder}
list=${2:?which list of pinned packages}
stamp=$(sha256sum <"$list")
if [[ -f $dir/.stamp && $(<"$dir/.stamp") == "$stamp" ]]; then exit 0; fi

tools/bootstrap.sh python
say "Making $dir from $list"
rm -rf "$dir"
/usr/bin/python3 -m venv "$dir"
"$dir/bin/pip" --no-input --disable-pip-version-check install --requirement "$list" </dev/null ||
  die "the packages of $list could not be installed: check the network, then try again"
echo "$stamp" >"$dir/.stamp"

#!/bin/bash
# Configures a preset of CMakePresets.json where that is due, and builds it.
#
#   tools/build.sh PRESET [--configure-only | TARGET...]
#
# JOBS compilers run at once (default: one a core).
set -euo pipefail
source "$(dirname "$0")/say.sh"

preset=${1:?which preset: see CMakePresets.json}
shift
dir=build
[[ $preset == release ]] || dir=build-$preset

# Objects are shared between presets' and worktrees' caches by content, not by where they lie. A home that cannot be
# written (a service account, a container) must not break the build.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
if [[ -z ${CCACHE_DIR:-} && ! -d ${HOME:-/nonexistent}/.ccache && ! -w ${HOME:-/nonexistent} ]]; then
  export CCACHE_DIR=$PWD/build/ccache
fi

# A build folder that was configured elsewhere (a moved or copied clone) cannot be used by CMake: start it anew.
if [[ -f $dir/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$dir/CMakeCache.txt"; then
  say "Starting $dir anew: it was configured for another folder"
  rm -rf "$dir"
fi
# Ninja configures again by itself when a CMake file or the set of sources changes; a change of preset it does not see.
if [[ ! -f $dir/build.ninja || CMakePresets.json -nt $dir/build.ninja ]]; then
  say "Configuring $dir (preset $preset)"
  cmake --preset "$preset"
  touch "$dir/build.ninja"
fi
[[ ${1:-} != --configure-only ]] || exit 0

say "Building ${*:-all} in $dir"
# TSan's runtime of GCC 12 does not know the widest address randomisation of newer kernels, and building runs each test
# program once to list its tests.
wrap=()
if [[ $preset == tsan ]] && setarch -R true 2>/dev/null; then wrap=(setarch -R); fi
"${wrap[@]}" cmake --build "$dir" -j "${JOBS:-$(nproc)}" ${*:+--target "$@"}

#!/bin/bash
# Installs Kvist into an empty folder and uses it from there as a stranger would: the examples, copied out of the source
# tree, are built against the installed package, by CMake and by make, and run with an installed node and without one.
#
#   tests/package/examples.sh BUILD_DIR
set -euo pipefail

source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build_dir=$(cd "${1:?which build folder}" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/kvist-package-XXXXXX")
node=
finish() {
  [[ -z $node ]] || kill "$node" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cmake --install "$build_dir" --prefix "$work/installed" --strip >"$work/install.log"
cp -r "$source_dir/examples" "$work/examples"
# A tree that was moved still works: nothing in the package may name the folder it was installed to first.
mv "$work/installed" "$work/kvist"
lib=$(dirname "$(find "$work/kvist" -name libkvist.a)")
(cd "$work/kvist" && find . ! -type d | sort)
grep -rIl -e "$source_dir" -e "$build_dir" "$work/kvist" && fail "these installed files name the build's folders"

for kind in c cpp; do
  cmake -S "$work/examples/$kind" -B "$work/build-$kind" -DCMAKE_PREFIX_PATH="$work/kvist" >"$work/configure-$kind.log" ||
    { cat "$work/configure-$kind.log"; fail "configuring examples/$kind"; }
  cmake --build "$work/build-$kind" >"$work/build-$kind.log" 2>&1 || { cat "$work/build-$kind.log"; fail "examples/$kind"; }
done
make -s -C "$work/examples/c" PKG_CONFIG_PATH="$lib/pkgconfig" CFLAGS="-Wall -Wextra -pedantic -Werror"
PKG_CONFIG_PATH="$lib/pkgconfig" bash -c 'g++ -std=c++20 -Wall -Wextra $(pkg-config --cflags kvist-cpp) -o "$0"/turn-pc \
  "$0"/examples/cpp/turn.cc $(pkg-config --libs kvist-cpp)' "$work"

# What the C++ program needs at run time: no library of ours, and none that the system does not have anyway.
needed=$(readelf -d "$work/turn-pc" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' | sort | tr '\n' ' ')
for library in $needed; do
  case "$library" in
    libc.so.6 | libm.so.6 | libstdc++.so.6 | libgcc_s.so.1 | ld-linux-*) ;;
    *) fail "the C++ example needs $library" ;;
  esac
done

export KVIST_SOCKET=$work/node.sock
"$work/kvist/bin/kvist" node --memory 64MiB --socket "$KVIST_SOCKET" --scrub 0 >"$work/node.log" 2>&1 &
node=$!
for _ in $(seq 200); do
  [[ ! -S $KVIST_SOCKET ]] || break
  kill -0 "$node" 2>/dev/null || { cat "$work/node.log"; fail "the node ended"; }
  sleep 0.05
done
[[ -S $KVIST_SOCKET ]] || { cat "$work/node.log"; fail "the node has no socket after ten seconds"; }
expect() {
  local wanted=$1
  shift
  local said
  said=$("$@") || fail "$* ended with $?"
  echo "${*##*/}: $said"
  [[ $said == "$wanted" ]] || fail "$* should say '$wanted'"
}
empty="0 of 32 blocks were there, 32 stored, 32 now"
full="32 of 32 blocks were there, 0 stored, 32 now"
expect "$empty" "$work/examples/c/turn"
expect "$full" "$work/build-c/turn"
expect "$empty" "$work/build-cpp/turn"
expect "$full" "$work/turn-pc"
expect "$empty" "$work/build-c/turn" --embedded
expect "$empty" "$work/build-cpp/turn" --embedded
kill "$node"
wait "$node"
node=
if "$work/build-c/turn" 2>"$work/error"; then fail "without a node the example should fail"; fi
grep -q "kvist node" "$work/error" || fail "without a node it should say how to start one: $(cat "$work/error")"

#!/bin/bash
# Follows docs/quickstart.md: runs its blocks of shell in order, in one shell, and compares what they print with the blocks of
# text behind them, in which `...` stands for anything.
#
#   tests/package/quickstart.sh BUILD_DIR
#
# Two things differ from what a reader does: $HOME and /tmp/kvist are folders of this run, and the two blocks that build
# (`sh build`, `sh wheel`) are replaced by what BUILD_DIR has already.
set -euo pipefail

source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build_dir=$(cd "${1:?which build folder}" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/kvist-quick-XXXXXX")
finish() {
  local status=$? left
  left=$(jobs -p)
  [[ -z $left ]] || kill $left 2>/dev/null || true
  wait
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
fail() {
  echo "FAILED: docs/quickstart.md: $*" >&2
  exit 1
}

cd "$source_dir"
export HOME=$work/home
here=$work/kvist
mkdir "$HOME"
page=$(sed "s#/tmp/kvist#$here#g" docs/quickstart.md)

install_what_is_built() { cmake --install "$build_dir" --prefix "$HOME/kvist" --strip >"$work/install.log"; }
python_of_the_build_folder() {
  mkdir -p "$here/venv/bin"
  printf '#!/bin/bash\nPYTHONPATH=%q exec /usr/bin/python3 "$@"\n' "$build_dir/python" >"$here/venv/bin/python"
  chmod +x "$here/venv/bin/python"
}

# Whether file $1 says text $2.
says() {
  local pattern said
  pattern=$(sed -e 's/[][\.*^$+?(){}|]/\\&/g' -e 's/\\\.\\\.\\\./.*/g' <<<"$2")
  said=$(cat "$1")
  [[ $said =~ ^$pattern$ ]]
}

# What was started in the background prints when it is ready, so a text is waited for.
expect() {
  local tries
  for ((tries = 0; tries < 200; tries++)); do
    if says "$1" "$2"; then return 0; fi
    sleep 0.05
  done
  fail "it should print"$'\n'"$2"$'\n'"and prints"$'\n'"$(cat "$1")"
}

blocks=0 texts=0 kind='' text=''
out=/dev/null
while IFS= read -r line; do
  if [[ -z $kind && $line == '```'* ]]; then
    kind=${line#'```'} text=''
  elif [[ $line != '```' ]]; then
    text+=$line$'\n'
  else
    case "$kind" in
      'sh build') install_what_is_built ;;
      'sh wheel') python_of_the_build_folder ;;
      sh)
        blocks=$((blocks + 1))
        out=$work/out.$blocks
        printf '%s' "$text"
        eval "$text" >"$out" 2>&1 || fail "this ended with $?:"$'\n'"$text$(cat "$out")"
        ;;
      python) printf '%s' "$text" >"$here/read.py" ;;
      text) expect "$out" "${text%$'\n'}" && texts=$((texts + 1)) ;;
      *) fail "there is a block of kind '$kind', which nobody runs" ;;
    esac
    kind=''
  fi
done <<<"$page"
[[ $blocks -ge 8 && $texts -ge 6 ]] || fail "only $blocks blocks were run and $texts texts compared"
[[ ! -e $here && ! -e $HOME/kvist ]] || fail "its last step leaves something behind"
echo "$blocks blocks run, $texts texts compared"

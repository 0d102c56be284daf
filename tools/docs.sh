#!/bin/bash
# Writes the pages of docs/ that are made from the program's own tables, then checks all pages.
#
#   tools/docs.sh [KVIST]             # write and check: `make docs`
#   tools/docs.sh --check [KVIST]     # write nothing; a page that is stale is a failure like the others: `make test`
#   tools/docs.sh --pages             # only what needs no built program
#
# What is checked of every *.md of the tree:
#   links     a relative one leads to a file or folder that there is, its #fragment to a heading of that page
#   reach     a way of links leads to the page from README.md, and docs/README.md lists each page of docs/
#   names     `path` in a folder of the tree, `make TARGET`, `kvist VERB` and test programs, in the text and at the start of a
#             line of a block of code: there is such a one
#   tests     each `Suite.Name` in docs/operations.md is a test, and each row of its table of deaths names one
set -euo pipefail
source "$(dirname "$0")/say.sh"

mode=write
case "${1:-}" in
  --check) mode=check && shift ;;
  --pages) mode=pages && shift ;;
  -*) die "unknown option '$1'; there are --check and --pages" ;;
esac
kvist=${1:-build/kvist}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/kvist-docs.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

failures=0
complain() {
  echo "$1" >&2
  failures=$((failures + 1))
}

# ---- pages that the program writes --------------------------------------------------------------------------------

generated() {
  local what=$1 page=$2
  "$kvist" manual "$what" >"$scratch/page"
  if cmp -s "$scratch/page" "$page"; then return 0; fi
  if [[ $mode == check ]]; then
    complain "$page: is not what \`kvist manual $what\` prints: run \`make docs\`"
  else
    cp "$scratch/page" "$page"
    say "Wrote $page"
  fi
}
if [[ $mode != pages ]]; then
  [[ -x $kvist ]] || die "there is no $kvist; run \`make build\`"
  generated settings docs/configuration.md
  generated metrics docs/metrics.md
fi

# ---- what the pages say -------------------------------------------------------------------------------------------

# Hidden folders are tools' own, with pages of theirs, but for those that belong to the tree.
mapfile -t pages < <(find . \( -name '.?*' ! -name .ci ! -name .github -o -path './build*' -o -path ./dist \) -prune -o -name '*.md' -print | sed 's#^\./##' | sort)
[[ ${#pages[@]} -gt 0 ]] || die "there is no page"

# One line for each heading, link and name in `backquotes`: kind, page, line, text; and for each command in a block of code.
# Headings come as the fragments that Markdown's renderers make of them: small letters, hyphens for spaces, punctuation
# dropped, a number behind those that were there before.
awk '
  FNR == 1 { fenced = 0; held = ""; delete before }
  /^ *(```|~~~)/ { fenced = !fenced; next }
  fenced && /^(make [a-z]|kvist [a-z]|(sudo )?(tools|tests|build)\/)/ { sub(/^sudo /, ""); print "name", FILENAME, FNR, $0 }
  fenced { next }
  /^#+ / {
    slug = tolower($0)
    sub(/^#+ +/, "", slug)
    while (match(slug, /\]\([^)]*\)/)) slug = substr(slug, 1, RSTART) substr(slug, RSTART + RLENGTH)
    gsub(/[^a-z0-9 _-]/, "", slug)
    gsub(/ /, "-", slug)
    print "heading", FILENAME, FNR, (slug in before) ? slug "-" before[slug] : slug
    before[slug]++
  }
  /^$/ { held = "" }
  {
    rest = held $0
    if (gsub(/`/, "&", rest) % 2) { held = rest " "; next }  # a name that goes on in the next line
    held = ""
    while (match(rest, /`[^`]+`/)) {
      print "name", FILENAME, FNR, substr(rest, RSTART + 1, RLENGTH - 2)
      rest = substr(rest, 1, RSTART - 1) substr(rest, RSTART + RLENGTH)
    }
    while (match(rest, /\]\([^) ]+\)/)) {
      print "link", FILENAME, FNR, substr(rest, RSTART + 2, RLENGTH - 3)
      rest = substr(rest, RSTART + RLENGTH)
    }
  }
' "${pages[@]}" >"$scratch/said"

declare -A heading=() leads=() is_page=()
for page in "${pages[@]}"; do is_page[$page]=1; done
while read -r _ page _ slug; do heading["$page#$slug"]=1; done < <(grep '^heading ' "$scratch/said")

# "docs/a.md" and "../README.md" -> "README.md"; nothing where that leaves the tree.
target_of() { realpath -m --relative-to=. "$(dirname "$1")/$2" | grep -v '^\.\./' || true; }

links=0
while read -r _ page line link; do
  [[ $link != *:* ]] || continue  # http:, mailto:
  links=$((links + 1))
  path=${link%%#*}
  target=$page
  if [[ -n $path ]]; then target=$(target_of "$page" "$path"); fi
  if [[ -z $target || ! -e $target ]]; then
    complain "$page:$line: $link leads nowhere"
    continue
  fi
  [[ -z ${is_page[$target]:-} ]] || leads[$page]+=" $target"
  [[ $link != *'#'* || -n ${heading["$target#${link#*#}"]:-} ]] || complain "$page:$line: $target has no heading for #${link#*#}"
done < <(grep '^link ' "$scratch/said")

declare -A reached=([README.md]=1)
ways=(README.md)
while [[ ${#ways[@]} -gt 0 ]]; do
  page=${ways[0]}
  ways=("${ways[@]:1}")
  for next in ${leads[$page]:-}; do
    [[ -z ${reached[$next]:-} ]] || continue
    reached[$next]=1
    ways+=("$next")
  done
done
for page in "${pages[@]}"; do
  [[ -n ${reached[$page]:-} ]] || complain "$page: no way of links leads here from README.md"
  if [[ $page == docs/* && $page != docs/README.md && " ${leads[docs/README.md]:-} " != *" $page "* ]]; then
    complain "$page: docs/README.md, which lists all pages, does not list it"
  fi
done

targets=" $(sed -nE 's/^([a-z-]+):.*## .*/\1/p' Makefile | tr '\n' ' ')"
verbs=" help $(grep -h -A1 '^const Verb k' src/cli/*.cc | sed -nE 's/^ *"([a-z]+)",$/\1/p' | tr '\n' ' ')"
folders=$(printf '%s\n' */ | grep -vE '^(build|dist)' | tr -d '/' | paste -sd '|')
while read -r _ page line first second _; do
  case "$first" in
    # Words in capitals, * and { } stand for something.
    *NAME* | *FOLDER* | *FILE* | *[*{}\<\>\$]*) ;;
    make) [[ ! $second =~ ^[a-z] || $targets == *" $second "* ]] || complain "$page:$line: the Makefile has no target $second" ;;
    kvist | build/kvist) [[ ! $second =~ ^[a-z] || $verbs == *" $second "* ]] || complain "$page:$line: kvist has no verb $second" ;;
    build/test_*) [[ -d tests/${first#build/test_} ]] || complain "$page:$line: there is no test program $first" ;;
    *) [[ ! $first =~ ^($folders)/ || -e $first ]] || complain "$page:$line: there is no $first" ;;
  esac
done < <(grep '^name ' "$scratch/said")

# ---- docs/operations.md: each row with its test -------------------------------------------------------------------

grep -rhoE 'TEST(_F|_P)?\([A-Za-z0-9]+, [A-Za-z0-9]+\)' tests --include='*.cc' | sed -E 's/.*\(([A-Za-z0-9]+), ([A-Za-z0-9]+)\)/\1.\2/' |
  sort -u >"$scratch/tests"
named=0
while read -r _ page line name; do
  [[ $page == docs/operations.md && $name =~ ^[A-Z][A-Za-z0-9]+\.[A-Z][A-Za-z0-9]+$ ]] || continue
  named=$((named + 1))
  grep -qxF "$name" "$scratch/tests" || complain "$page:$line: there is no test $name"
done < <(grep '^name ' "$scratch/said")
[[ $named -gt 20 ]] || complain "docs/operations.md names $named tests; its table of deaths alone has more"
while IFS=: read -r line row; do
  complain "docs/operations.md:$line: this row names no test: $row"
done < <(awk '/^## /{ on = /when something dies/ } on && /^\| / && !/^\| (what|---)/ && !/`[A-Z][A-Za-z0-9]+\.[A-Z]/ { print FNR ": " $0 }' \
  docs/operations.md)

[[ $failures -eq 0 ]] || die "$failures faults in the pages"
say "${#pages[@]} pages: $links links, $named tests of docs/operations.md, and every name is right"

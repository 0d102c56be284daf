# tools/say.sh: sourced by the scripts beside it. One voice for what they print, and the repository's root as the
# working directory, so that each can be called from anywhere.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A step begins. Plain text where standard output is not a terminal.
say() {
  if [[ -t 1 ]]; then printf '\033[1m==> %s\033[0m\n' "$*"; else printf '==> %s\n' "$*"; fi
}

# Ends the script with a message that says what to do.
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

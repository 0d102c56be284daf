#!/bin/bash
# Runs the tests of the doors, tests/python/doors/test_ENGINE*.py, each on its real engine in an environment of its own.
#
#   tools/engine_tests.sh BUILD_FOLDER [ENGINE...]
#
# Without an engine: vllm sglang lmcache mooncake. WHICH=fast (default), slow or all chooses by pytest's marker;
# KVIST_TEST_PYTHON names an interpreter that has the engine already (one engine then). An engine whose environment cannot
# be made is skipped, with the reason; the last lines say what became of each. Ends with 1 if a test failed.
set -euo pipefail
source "$(dirname "$0")/say.sh"
source tools/pytest.sh

build=$(realpath "${1:?which build folder}")
shift
engines=("$@")
[[ ${#engines[@]} -gt 0 ]] || engines=(vllm sglang lmcache mooncake)
if [[ -n ${KVIST_TEST_PYTHON:-} && ${#engines[@]} -ne 1 ]]; then die "KVIST_TEST_PYTHON is one engine's: say which by ENGINE=NAME"; fi
choose_by_speed "${WHICH:-fast}"
use_package "$build"

# An engine takes its time to start: the limit of a single test is longer than in tests/python/pytest.ini.
test_engine() {
  local engine=$1 python=${KVIST_TEST_PYTHON:-$PWD/build/venv-$1/bin/python} files
  files=(tests/python/doors/test_"$engine"*.py)
  if [[ ! -e ${files[0]} ]]; then
    echo "skipped: there is no tests/python/doors/test_$engine*.py"
    return 77
  fi
  if [[ -z ${KVIST_TEST_PYTHON:-} ]]; then tools/engine_venv.sh "$engine" || return $?; fi
  say "Running $(printf '%s ' "${files[@]#tests/python/doors/}")with $python"
  run_pytest "$python" -o faulthandler_timeout=1200 "${files[@]}"
}

failed=0
outcomes=()
for engine in "${engines[@]}"; do
  [[ $engine =~ ^(vllm|sglang|lmcache|mooncake)$ ]] || die "there is no engine '$engine'; there are vllm, sglang, lmcache, mooncake"
  status=0
  test_engine "$engine" || status=$?
  case $status in
    0) outcomes+=("$engine: passed") ;;
    5) outcomes+=("$engine: no test is of this speed (WHICH=${WHICH:-fast})") ;;
    77) outcomes+=("$engine: skipped, see above for why") ;;
    *) outcomes+=("$engine: FAILED") && failed=1 ;;
  esac
done
printf '%s\n' "${outcomes[@]}"
exit $failed

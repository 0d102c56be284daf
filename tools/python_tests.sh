#!/bin/bash
# Runs tests/python on the package that lies in a build folder, with the pinned pytest of build/venv.
#
#   tools/python_tests.sh build fast|slow|all [PYTEST ARGUMENT...]
#
# Ends with 77, saying why, where the virtual environment is not there and cannot be made (no python3-venv, no network).
# Where torch can be imported (KVIST_TEST_PYTHON names another interpreter) its tests run too; else they say they skip.
set -euo pipefail
source "$(dirname "$0")/say.sh"
source tools/pytest.sh

build=$(realpath "${1:?which build folder}")
which=${2:?fast, slow or all}
shift 2
python=${KVIST_TEST_PYTHON:-$PWD/build/venv/bin/python}
if [[ -z ${KVIST_TEST_PYTHON:-} ]] && ! tools/venv.sh build/venv tools/requirements-python.txt >&2; then
  echo "skipped: there is no Python environment with pytest; make test needs python3-venv and, once, the network for it"
  exit 77
fi
choose_by_speed "$which"
use_package "$build"
run_pytest "$python" tests/python "$@" || {
  code=$?
  [[ $code -ne 5 ]] || { echo "skipped: no test is left (see above for what is not installed)"; exit 77; }
  exit $code
}

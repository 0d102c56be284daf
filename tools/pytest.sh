# tools/pytest.sh: sourced by the scripts that run tests/python, behind say.sh. How pytest is called for the package of a
# build folder.
#
#   use_package BUILD_FOLDER; choose_by_speed fast|slow|all; run_pytest PYTHON [PYTEST ARGUMENT...]

# The package that lies in the build folder is the one that is imported, and no node of this machine is used.
use_package() {
  export PYTHONPATH=$1/python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
  unset KVIST_SOCKET
}

choose_by_speed() {
  case "$1" in
    fast) select=(-m 'not slow') ;;
    slow) select=(-m slow) ;;
    all) select=() ;;
    *) die "tests are fast, slow or all, not '$1'" ;;
  esac
}

# Without asyncio's plugin, which warns where it is installed: a warning is an error here, and no test needs it.
run_pytest() {
  local python=$1
  shift
  "$python" -m pytest -q -rs -p no:cacheprovider -p no:asyncio --rootdir tests/python -c tests/python/pytest.ini \
    "${select[@]}" "$@"
}

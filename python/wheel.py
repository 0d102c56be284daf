"""Packs the package that lies in a build folder into a wheel.

    build/venv/bin/python python/wheel.py --build build --out build/wheel

The wheel holds the package, the extension (built against the limited API of Python 3.11, hence cp311-abi3), the `kvist`
command, and a script of that name. It is tagged linux_*: auditwheel (tools/wheel.sh) adds the libraries that a manylinux
system need not have, and finds the oldest such system on which it runs. Written by hand, since everything is built
already; the format is that of PyPA's "binary distribution format".
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXECUTABLE = {"kvist/bin/kvist"}
# vLLM calls the second in each of its processes: the connector is then known by its name, as MultiConnector needs it.
ENTRY_POINTS = b"""[console_scripts]
kvist = kvist.__main__:main

[vllm.general_plugins]
kvist = kvist.vllm:register
"""


def version() -> str:
    found = re.search(r"^project\(kvist VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    if found is None:
        raise SystemExit("CMakeLists.txt does not say project(kvist VERSION ...)")
    return found.group(1)


def stripped(file: pathlib.Path) -> bytes:
    with tempfile.NamedTemporaryFile() as copy:
        subprocess.run(["strip", "--strip-unneeded", "-o", copy.name, file], check=True)
        return pathlib.Path(copy.name).read_bytes()


def contents(build: pathlib.Path, info: str, tag: str) -> dict[str, bytes]:
    package = build / "python" / "kvist"
    files: dict[str, bytes] = {}
    for file in sorted(package.rglob("*")):
        if file.suffix in (".py", ".pyi") or file.name == "py.typed":
            files[f"kvist/{file.relative_to(package)}"] = file.read_bytes()
    for name in ("_kvist.abi3.so", "bin/kvist"):
        files[f"kvist/{name}"] = stripped((package / name).resolve(strict=True))
    files[f"{info}/METADATA"] = metadata().encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: kvist\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    return files


def metadata() -> str:
    fields = [
        "Metadata-Version: 2.4",
        "Name: kvist",
        f"Version: {version()}",
        "Summary: One pool of KV-cache blocks for the LLM engines of a host",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Requires-Python: >=3.11",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: Implementation :: CPython",
        "Classifier: Programming Language :: C++",
        "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(fields) + "\n\n" + (ROOT / "docs" / "python.md").read_text()


def record(files: dict[str, bytes], name: str) -> bytes:
    lines = []
    for file, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(data)}\n")
    return ("".join(lines) + f"{name},,\n").encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    tag = f"cp311-abi3-linux_{platform.machine()}"
    info = f"kvist-{version()}.dist-info"
    files = contents(options.build, info, tag)
    files[f"{info}/RECORD"] = record(files, f"{info}/RECORD")
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"kvist-{version()}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            entry = zipfile.ZipInfo(file, (1980, 1, 1, 0, 0, 0))  # the same bytes for the same contents
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if file in EXECUTABLE else 0o100644) << 16
            archive.writestr(entry, data)
    print(target)


if __name__ == "__main__":
    main()

"""Runs a program with `mooncake.store` meaning kvist.mooncake: see --help."""

import os
import runpy
import sys

from kvist.mooncake import as_mooncake, shim_path

_HELP = """Runs a program written for Mooncake Store on a Kvist node.

  python -m kvist.mooncake program.py [ARGUMENT...]
  python -m kvist.mooncake -m module [ARGUMENT...]
  python -m kvist.mooncake --path         prints a folder: PYTHONPATH=$(python -m kvist.mooncake --path) does the same

In the program, and in the Python processes that it starts, `mooncake.store` then is kvist.mooncake. The node's socket is
$KVIST_SOCKET, or where a node listens by default."""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return 0 if arguments else 2
    if arguments[0] == "--path":
        print(shim_path())
        return 0
    as_mooncake()
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = shim_path() + (os.pathsep + others if others else "")
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print("say which module: python -m kvist.mooncake -m module", file=sys.stderr)
            return 2
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

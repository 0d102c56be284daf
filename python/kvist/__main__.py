"""``python -m kvist`` and the ``kvist`` script: the kvist command."""

from __future__ import annotations

import sys

from kvist import _binary, doctor


def main() -> int:
    """Does not return, but for `kvist doctor --engine`, which runs in the engine's Python."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["doctor"] and doctor.is_of_engine(arguments):
        return doctor.main(arguments[1:])
    _binary.become(arguments)


if __name__ == "__main__":
    sys.exit(main())

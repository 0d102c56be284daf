"""Where the `kvist` command is: it comes with the package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def path() -> str:
    """The command's path: $KVIST_BINARY if set, else the one in the package."""
    found = os.environ.get("KVIST_BINARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "kvist")
    if not os.access(found, os.X_OK):
        raise FileNotFoundError(f"the kvist command is not at {found}: install the wheel again, or set KVIST_BINARY")
    return found


def become(arguments: list[str]) -> NoReturn:
    """Replaces this process by the command."""
    program = path()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, ["kvist", *arguments])

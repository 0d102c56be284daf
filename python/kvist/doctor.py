"""``python -m kvist.doctor``: whether this machine has what Kvist needs, and what to do where not (= ``kvist doctor``).

With ``--engine vllm`` it looks at the engine instead, within the Python environment that runs it: its version, what decides
whether engines share blocks, and whether the node can be used from here. ``--help`` after it lists the options.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Sequence

from kvist import _binary

ENGINES = ("vllm",)
_RANK = {"ok": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True)
class Check:
    """An answer to one question: name (stable, for scripts), verdict ("ok", "warn": it works, with a disadvantage, "fail": it
    does not), what was found, and what to do about it (empty when ok)."""

    name: str
    verdict: str
    found: str
    advice: str = ""


def is_of_engine(arguments: Sequence[str]) -> bool:
    """Whether these arguments of `doctor` are for this program rather than for the command's own doctor."""
    return any(word == "--engine" or word.startswith("--engine=") for word in arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a check fails, else 0; wrong arguments end the process with 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not is_of_engine(given):
        _binary.become(["doctor", *given])
    options = _parser().parse_args(given)
    if options.python and os.path.realpath(options.python) != os.path.realpath(sys.executable):
        return _elsewhere(options.python, given)
    # Engines and what they import write to standard output; that is the report's.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        sys.stdout.flush()
        os.dup2(2, 1)
        from kvist.vllm import doctor

        checks = doctor.examine(options)
        worst = max((check.verdict for check in checks), key=lambda verdict: _RANK[verdict])
        out.write(_as_json(checks, worst) if options.json else _as_text(checks, worst))
    return int(worst == "fail")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvist doctor",
        allow_abbrev=False,
        description="Check an engine's environment for Kvist, and say what to do about it. Run it with the environment variables, "
        "as the user and in the container that run the engine. Exits with 1 if any line says fail.",
    )
    add = parser.add_argument
    add("--engine", choices=ENGINES, required=True)
    add("--socket", metavar="PATH", help="the node's socket; default: what --kv-transfer-config says, else $KVIST_SOCKET")
    add("--json", action="store_true", help="print one JSON object: verdict, checks[] of name, verdict, found, advice")
    add("--python", metavar="PATH", help="the interpreter that runs the engine; default: this one")
    add("--kv-transfer-config", metavar="JSON", help="the engine's, to check it too")
    add("--block-size", type=int, metavar="N", help="the engine's; default: the engine's default here")
    add("--dtype", default="auto", help="the engine's")
    add("--prefix-caching-hash-algo", metavar="NAME", help="the engine's; default: the engine's default")
    return parser


def _elsewhere(python: str, given: list[str]) -> int:
    """Runs this program by another interpreter; does not return but where that is impossible."""
    try:
        os.execv(python, [python, "-m", "kvist.doctor", *given])
    except OSError as error:
        print(f"kvist doctor: --python {python}: {error.strerror}", file=sys.stderr)
    return 2


def _as_json(checks: Sequence[Check], worst: str) -> str:
    return json.dumps({"verdict": worst, "checks": [asdict(check) for check in checks]}) + "\n"


def _as_text(checks: Sequence[Check], worst: str) -> str:
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<4}  {check.name:<12}  {_printable(check.found)}")
        if check.advice:
            lines.append(" " * 20 + _printable(check.advice))
    lines += [
        "",
        {
            "ok": "All is as it should be.",
            "warn": "Kvist works with this engine; the lines with warn say what could be better.",
            "fail": "Kvist does not work with this engine until the lines with fail are dealt with.",
        }[worst],
    ]
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


if __name__ == "__main__":
    sys.exit(main())

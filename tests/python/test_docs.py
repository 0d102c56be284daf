"""The guide's examples run, in order, as one program; its signatures are those of the package."""

import ast
import importlib.util
import inspect
import pathlib
import re

import pytest

import kvist

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"


def examples():
    text = GUIDE.read_text()
    for found in re.finditer(r"^```python ?(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield found.group(1), text[: found.start(2)].count("\n"), found.group(2)


def test_every_example_of_the_guide_runs():
    pytest.importorskip("numpy")
    space, ran = {"__name__": "guide"}, 0
    for word, line, code in examples():
        if word == "signatures" or (word == "torch" and importlib.util.find_spec("torch") is None):
            continue
        exec(compile("\n" * line + code, str(GUIDE), "exec"), space)
        ran += 1
    assert ran >= 10


def signature(call):
    return [argument.id for argument in call.args if isinstance(argument, ast.Name)] + [k.arg for k in call.keywords]


def test_the_signatures_are_those_of_the_package():
    word, _, code = next(examples())
    assert word == "signatures" and GUIDE.read_text().index("```python") < 30, "they come first"
    lines = [line for line in code.splitlines() if line]
    assert len(lines) == 10
    owners = {"kvist": kvist, "space": kvist.Space, "client": kvist.Client}
    for line in lines:
        text = line.split(" #")[0].replace("*, ", "")
        call = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        described = inspect.signature(getattr(owners[call.func.value.id], call.func.attr))
        unknown = set(signature(call)) - set(described.parameters)
        assert not unknown, f"{call.func.attr}{described} has no {unknown}"


def test_every_call_of_the_extension_describes_its_arguments():
    for owner in (kvist.Client, kvist.Space, kvist.Batch):
        for name, member in vars(owner).items():
            if name.startswith("_") or not callable(member):
                continue
            assert inspect.signature(getattr(owner, name)) and getattr(owner, name).__doc__, f"{owner.__name__}.{name}"

"""The guide's examples run, in order, as one program; its signatures are those of the package."""

import ast
import importlib.util
import inspect
import pathlib
import re

import pytest

import kvist
from kvist import _kvist

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "python.md"
TYPES = ast.parse((ROOT / "python" / "kvist" / "_kvist.pyi").read_text())


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


def parameters(arguments):
    """(name, whether by name only, default) of each, as described() has it."""
    by_place = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(by_place) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    names = [(a.arg, False) for a in by_place] + [(a.arg, True) for a in arguments.kwonlyargs]
    for (name, only), default in zip(names, defaults, strict=True):
        if name not in ("self", "cls"):
            text = None if default is None else ast.unparse(default)
            yield name, only, None if text is None else repr(eval(text, {"kvist": kvist}))


def described(call):
    for p in inspect.signature(call).parameters.values():
        if p.name not in ("self", "cls"):
            yield p.name, p.kind is p.KEYWORD_ONLY, None if p.default is p.empty else repr(p.default)


def typed_methods():
    """Each method of the type stubs that is neither overload nor property, with its owner's name."""
    for owner in TYPES.body:
        for item in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(item, ast.FunctionDef):
                if not {"overload", "property"} & {ast.unparse(decorator) for decorator in item.decorator_list}:
                    yield owner.name, item


def test_the_signatures_are_those_of_the_package():
    word, _, code = next(examples())
    assert word == "signatures" and GUIDE.read_text().index("```python") < 30, "they come first"
    lines = [line for line in code.splitlines() if line]
    assert len(lines) == 10
    owners = {"kvist": kvist, "space": kvist.Space, "client": kvist.Client}
    returned = {(owner, item.name): ast.unparse(item.returns) for owner, item in typed_methods() if item.returns}
    for line in lines:
        owner, name, arguments, words = re.fullmatch(r"(?:\w+ = )?(\w+)\.(\w+)\((.*?)\) +#(.*)", line).groups()
        shown = list(parameters(ast.parse(f"def f({arguments.removesuffix(', ...')}): pass").body[0].args))
        real = list(described(getattr(owners[owner], name)))
        if arguments.endswith(", ..."):
            left_out = [one for one in real if one not in shown]
            assert left_out and all(only for _, only, _ in left_out), f"{name}: ... stands for some that are by name only"
            real = [one for one in real if one in shown]
        assert shown == real, f"{name}{inspect.signature(getattr(owners[owner], name))} is not that of the guide"
        if owner != "kvist":
            assert re.search(r"-> (\w+)", words).group(1) == returned[owners[owner].__name__, name]


def test_the_type_stubs_are_true():
    compared = 0
    for owner, item in typed_methods():
        if item.name.startswith("__") and item.name != "__new__":
            continue
        cls = getattr(_kvist, owner)
        real = list(described(cls if item.name == "__new__" else getattr(cls, item.name)))
        assert list(parameters(item.args)) == real, f"{owner}.{item.name}"
        compared += 1
    assert compared >= 30


def test_every_call_of_the_extension_describes_its_arguments():
    for owner in (kvist.Client, kvist.Space, kvist.Batch):
        for name, member in vars(owner).items():
            if name.startswith("_") or not callable(member):
                continue
            assert inspect.signature(getattr(owner, name)) and getattr(owner, name).__doc__, f"{owner.__name__}.{name}"

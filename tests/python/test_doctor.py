"""`python -m kvist.doctor`: which doctor answers, and what of an engine's that needs no engine."""

import json
import os
import subprocess
import sys

import pytest

from kvist import doctor


def run(*arguments, module="kvist.doctor", **environment):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_without_an_engine_it_is_the_commands_own(tmp_path):
    socket = str(tmp_path / "node.sock")
    for module, words in (("kvist.doctor", ()), ("kvist", ("doctor",))):
        names = [check["name"] for check in json.loads(run(*words, "--json", "--socket", socket, module=module).stdout)["checks"]]
        assert "memfd_seals" in names and "engine" not in names


@pytest.mark.parametrize("module, words", [("kvist.doctor", ()), ("kvist", ("doctor",))])
def test_with_an_engine_that_is_not_installed_it_says_so_in_either_form(node, tmp_path, module, words):
    # An interpreter without site-packages has no engine, whatever this one has.
    script = f"import sys, runpy; sys.argv = ['kvist', *{list(words)!r}, *sys.argv[1:]]; runpy.run_module({module!r}, run_name='__main__')"
    command = [sys.executable, "-S", "-c", script, "--engine=vllm", "--socket", node.socket]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert text.returncode == 1, text.stderr
    assert "fail  engine        vLLM is not installed" in text.stdout
    assert "until the lines with fail are dealt with" in text.stdout
    machine = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert machine.returncode == 1
    report = json.loads(machine.stdout)
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert report["verdict"] == "fail" and verdicts["engine"] == "fail" and verdicts["node"] == verdicts["round_trip"] == "ok"
    for check in report["checks"]:
        assert set(check) == {"name", "verdict", "found", "advice"}
        assert (check["advice"] == "") == (check["verdict"] == "ok")


def test_wrong_arguments_are_told(tmp_path):
    assert run("--engine", "word").returncode == 2
    assert run("--engine", "vllm", "--blocksize", "3").returncode == 2
    absent = run("--engine", "vllm", "--python", str(tmp_path / "python"))
    assert absent.returncode == 2 and "No such file" in absent.stderr


def test_another_interpreter_is_asked_where_one_is_named(tmp_path):
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\necho "$@"\n')
    other.chmod(0o755)
    asked = run("--engine", "vllm", "--python", str(other), "--json")
    assert asked.stdout.split()[:2] == ["-m", "kvist.doctor"] and "--json" in asked.stdout


def test_what_is_found_is_printed_on_one_line():
    text = doctor._as_text([doctor.Check("a", "ok", "one\ntwo\x1b[31m")], "ok")
    assert text.splitlines()[0] == "ok    a             one two [31m"

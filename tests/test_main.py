from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from nsqkit import __version__
from nsqkit.__main__ import COMMANDS, main


@pytest.mark.parametrize(("word", "room"), [("nsqd", "broker"), ("nsqlookupd", "lookupd")])
def test_the_first_word_names_the_command(word, room, monkeypatch):
    calls = []

    def command(words):
        calls.append(words)
        return 5

    cli = types.ModuleType(f"nsqkit.{room}.cli")
    vars(cli)["main"] = command
    monkeypatch.setitem(sys.modules, f"nsqkit.{room}.cli", cli)
    assert main([word, "--version", "x"]) == 5
    assert calls == [["--version", "x"]]


def test_arguments_are_those_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["nsqkit", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"nsqkit {__version__}\n"


@pytest.mark.parametrize("word", ["-h", "-help", "--help"])
def test_help_lists_the_commands(word, capsys):
    assert main([word]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: nsqkit COMMAND [FLAGS]\n")
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "None" not in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "a command is missing"),
        (["nsqx"], 'unknown command "nsqx"'),
        (["NSQD"], 'unknown command "NSQD"'),
        (["--nope"], 'unknown command "--nope"'),
    ],
)
def test_unknown_commands_are_refused(words, problem, capsys):
    assert main(words) == 2
    assert (
        capsys.readouterr().err == f"nsqkit: {problem}; allowed is nsqd, nsqlookupd, conformance, --help or --version\n"
    )


@pytest.mark.parametrize("word", ["nsqd", "nsqlookupd"])
def test_package_runs(word):
    run = subprocess.run(
        [sys.executable, "-m", "nsqkit", word, "--version"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"{word} v1.3.0 (built w/go")


def test_output_that_nobody_reads_is_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "nsqkit", "nsqd", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (2, b"")

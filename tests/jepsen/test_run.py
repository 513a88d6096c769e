"""A short run of everything, and the command's exit statuses."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.jepsen.__main__ import main, promise_of
from tests.jepsen.history import read_history
from tests.jepsen.process import command_words

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")


@pytest.mark.timeout(180)
def test_no_promise_is_broken_in_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "history.jsonl"
    words = ["--minutes=0.07", "--brokers=1", "--rate=100", "--pause=0.3", "--seed=4", f"--history={path}"]
    status = main(words)
    text, errors = capsys.readouterr()
    assert status == 0, errors + text
    assert main([f"--check={path}"]) == 0
    assert capsys.readouterr().out == text
    setup, events = read_history(path.read_text(encoding="utf-8").splitlines())
    assert (setup.promise, setup.seed, setup.brokers) == ("fsync", 4, 1)
    assert {"ok", "deliver", "confirm", "heal", "left"} <= {event.kind for event in events}


PYTHON = shlex.quote(sys.executable)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("/no/such/nsqd", "/no/such/nsqd cannot be started: No such file or directory"),
        (f"{PYTHON} -c 'print(7)'", "the broker ended with status 0: "),
        ("python -m nsqkit nsqd --colour=red", "the broker ended with status 2: "),
    ],
)
def test_broker_that_does_not_start_is_one_sentence_and_status_2(
    command: str, text: str, capsys: pytest.CaptureFixture[str]
):
    assert main([f"--broker={command}", "--brokers=1"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(text)
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_bad_history_is_one_sentence_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "history.jsonl"
    path.write_text("{}\n")
    assert main([f"--check={path}"]) == 2
    assert capsys.readouterr().err == "line 1 is not the setup of a history of version 1\n"
    assert main([f"--check={tmp_path / 'missing'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_broken_promise_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "history.jsonl"
    lines = [
        '{"version": 1, "promise": "fsync"}',
        '{"kind": "invoke", "time": 0, "broker": 0, "body": "m"}',
        '{"kind": "ok", "time": 1, "body": "m"}',
        '{"kind": "end", "time": 2}',
    ]
    path.write_text("\n".join(lines))
    assert main([f"--check={path}"]) == 1
    assert "1 lost: acknowledged, never finished, and no longer in the broker" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "promise"),
    [
        ("python -m nsqkit nsqd --durability=fsync {flags}", "fsync"),
        ("python -m nsqkit nsqd {flags}", "nsqkit"),
        ("nsqkit nsqd --durability=nsqd", "nsqkit"),
        ("/usr/bin/nsqd", "nsqd"),
    ],
)
def test_command_shows_the_promise(command: str, promise: str):
    assert promise_of(command) == promise


def test_flags_have_a_place_in_each_command():
    assert command_words("python -m nsqkit nsqd {flags} -x") == [
        sys.executable,
        "-m",
        "nsqkit",
        "nsqd",
        "{flags}",
        "-x",
    ]
    assert command_words("'/a b/nsqd' -x") == ["/a b/nsqd", "-x", "{flags}"]

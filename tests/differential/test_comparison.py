"""The comparison, with two processes of nsqkit: equal ones do not differ, and one other answer is found and shrunk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.__main__ import main
from tests.differential.draw import framed
from tests.differential.draw_handover import draw_handover
from tests.differential.draw_lookupd import draw_lookupd
from tests.differential.pairs import Pairs
from tests.differential.plan import Plan, Step
from tests.differential.program import own_command
from tests.differential.shrink import shrink

DEFECT = """
import sys
from nsqkit.broker.core.session import session
from nsqkit.__main__ import main

session.ACTIONS[b"TOUCH"] = session.ACTIONS[b"FIN"]
sys.argv = ["nsqkit", "nsqd", *sys.argv[1:]]
sys.exit(main())
"""
"""nsqkit's nsqd, which finishes the messages that it should touch."""

TOUCHES = Plan(
    "nsqd",
    {},
    (
        Step("connect", {"on": "b"}),
        Step("connect", {"on": "a"}),
        Step("send", {"on": "a", "data": "SUB <t0> c0\n", "answers": 1, "sub": "<t0>/c0"}),
        Step("send", {"on": "a", "data": "RDY 5\n", "answers": 0, "ready": 5}),
        Step("http", {"method": "GET", "path": "/stats?format=text"}),
        Step("send", {"on": "b", "data": "PUB <t0>\n" + framed("m1"), "answers": 1}),
        Step("settle"),
        Step("send", {"on": "a", "data": "TOUCH <a0>\n", "answers": 0}),
        Step("settle"),
    ),
)


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    with Pairs("nsqd", own_command("nsqd")) as running:
        yield running


def test_two_copies_do_not_differ(pairs: Pairs):
    handover = next(plan for seed in range(100) if not (plan := draw_handover(seed)).options)
    assert pairs.run(TOUCHES) == []
    assert pairs.run(handover) == []


def test_a_second_consumer_of_a_channel_gets_no_messages(pairs: Pairs):
    steps = [step for step in TOUCHES.steps if step.verb == "send"]
    second = [Step(step.verb, step.values | {"on": "b"}) for step in steps[:2]]
    plan = Plan("nsqd", {}, (*TOUCHES.steps[:2], *steps[:2], *second, steps[2], Step("settle")))
    assert pairs.run(plan) == []


def test_other_behaviour_is_found_and_shrunk(tmp_path: Path):
    program = tmp_path / "defect.py"
    program.write_text(DEFECT)
    with Pairs("nsqd", own_command("nsqd"), [sys.executable, str(program)]) as running:
        differences = running.run(TOUCHES)
        assert any(difference.where.endswith("/finish_count") for difference in differences)
        small = shrink(TOUCHES, running.run)
    commands = [step.values["data"].split(" ")[0] for step in small.steps if step.verb == "send"]
    assert commands == ["SUB", "RDY", "PUB", "TOUCH"]
    assert len(small.steps) == 7, "both connections, and the wait for the message"


def test_two_copies_of_nsqlookupd_do_not_differ():
    with Pairs("nsqlookupd", own_command("nsqlookupd")) as running:
        for seed in range(8):
            assert running.run(Plan("nsqlookupd", {}, draw_lookupd(seed).steps)) == []


def test_missing_program_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("NSQD", raising=False)
    assert main(["1"]) == 2
    assert main(["1", "--nsqd", "/does/not/exist"]) == 2
    assert main(["1", "--nsqd", sys.executable]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "--nsqd" in lines[0]
    assert "cannot be run" in lines[1]
    assert "is not nsqd of version 1.3.0" in lines[2]


def test_wrong_plan_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "plan.json"
    path.write_text("{}")
    assert main(["--plan", str(path)]) == 2
    assert main(["x"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_plan_of_a_seed_is_printed_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "plan.json"
    path.write_text(TOUCHES.to_json())
    assert main(["--plan", str(path), "--own"]) == 0
    assert "no difference" in capsys.readouterr().out
    assert main(["7", "--print-plan"]) == 0
    assert capsys.readouterr().out.startswith('{"version": 1')

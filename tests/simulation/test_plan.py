"""Plans: what cannot be run is refused in one sentence, with exit status 2."""

from __future__ import annotations

import json

import pytest

from tests.simulation.__main__ import main
from tests.simulation.draw import draw
from tests.simulation.plan import Plan, PlanError, Step, check, parse_seed, read_plan


def document(**changes):
    return json.dumps(json.loads(draw(1).to_json()) | changes)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x1", "²"])
def test_seed_of_an_unknown_format_is_refused(text):
    with pytest.raises(PlanError, match="whole number from 0 on"):
        parse_seed(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is no plan"),
        ("[1]", "no JSON object with a version"),
        ("{}", "no JSON object with a version"),
        (document(version=2), "another version than 1"),
        (document(extra=1), "the file is no plan"),
        (document(seed=1, steps=[{"who": "node-1"}]), "the file is no plan"),
        (document(steps=[{"at_us": 0, "who": "node-7", "verb": "kill"}]), "names 'node-7', which is not in the plan"),
        (document(steps=[{"at_us": 0, "who": "node-1", "verb": "jump"}]), "node-1 has no action 'jump'"),
        (document(steps=[{"at_us": 0, "who": "nodes/x", "verb": "cut"}]), "names 'nodes/x'"),
        (document(players={"p": {"kind": "ghost"}}), "player p is of kind 'ghost'"),
        (document(players={"p": {"kind": "producer", "node": "n"}}), "player p uses 'n'"),
        (document(players={"p": {"kind": "producer", "nodes": ["n"]}}), "player p uses 'n'"),
    ],
)
def test_plan_that_cannot_be_run_is_refused(text, reason):
    with pytest.raises(PlanError, match=reason):
        read_plan(text)


def test_steps_have_to_be_in_order():
    steps = (Step(2, "node-1", "kill"), Step(1, "node-1", "start"))
    with pytest.raises(PlanError, match="order of their times"):
        check(Plan("1", {"topics": []}, {"node-1": {}}, {}, steps))


def test_each_step_is_a_line():
    plan = draw(3)
    assert len(plan.to_json().splitlines()) == len(plan.steps) + 5


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["x"], "a seed is a whole number from 0 on, not 'x'\n"),
        (["--plan", "{path}"], "the plan has another version than 1, which alone can be run\n"),
        (["--plan", "{path}-missing"], "No such file"),
    ],
)
def test_wrong_input_ends_with_one_sentence_and_status_2(words, reason, tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text('{"version": 9}')
    assert main([word.format(path=path) for word in words]) == 2
    found = capsys.readouterr()
    assert reason in found.err
    assert (found.out, found.err.count("\n")) == ("", 1)


def test_command_runs_a_seed_a_plan_and_a_trace(tmp_path, capsys):
    assert main(["5", "--worlds", "2"]) == 0
    assert "2 worlds, 0 failed" in capsys.readouterr().out
    assert main(["5", "--print-plan"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    assert main(["--plan", str(path)]) == 0
    assert "1 worlds, 0 failed" in capsys.readouterr().out
    assert main(["--plan", str(path), "--trace"]) == 0
    assert "── all faults end" in capsys.readouterr().out
    assert main(["--plan", str(path), "--shrink"]) == 2

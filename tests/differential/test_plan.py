"""Plans as data, and the drawing of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.differential.draw import draw
from tests.differential.draw_handover import draw_handover
from tests.differential.draw_lookupd import draw_lookupd
from tests.differential.plan import Plan, PlanError, Step, parse_seed, read_plan

DRAWINGS = [draw, draw_handover, draw_lookupd]
EMPTY = {"version": 1, "program": "nsqd", "options": {}, "steps": []}


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_plan_is_determined_by_its_seed_and_survives_its_document(drawing: Callable[[int], Plan]):
    for seed in range(50):
        plan = drawing(seed)
        assert plan == drawing(seed)
        assert read_plan(plan.to_json()) == plan
    assert drawing(1) != drawing(2)


def test_many_plans_have_every_verb_and_command():
    plans = [drawing(seed) for drawing in DRAWINGS for seed in range(300)]
    steps = [step for plan in plans for step in plan.steps]
    assert {step.verb for step in steps} == {"connect", "send", "http", "close", "settle", "hand over"}
    commands = {step.values["data"].split("\n")[0].split(" ")[0] for step in steps if step.verb == "send"}
    assert commands >= {"IDENTIFY", "SUB", "PUB", "MPUB", "DPUB", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP", "AUTH"}
    assert commands >= {"REGISTER", "UNREGISTER", "PING"}
    paths = {step.values["path"].partition("?")[0] for step in steps if step.verb == "http"}
    assert paths >= {"/pub", "/mpub", "/stats", "/config/log_level", "/topic/pause", "/channel/empty", "/lookup"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version 2"),
        ({"program": "nsqadmin"}, "nsqadmin"),
        ({"steps": [{"verb": "dance"}]}, "dance"),
        ({"steps": [{"verb": "close"}]}, "lacks on"),
        ({"steps": [{"verb": "settle", "on": "a"}]}, "unknown value on"),
        ({"steps": [1]}, "no plan"),
        ({"options": 1}, "no plan"),
    ],
)
def test_wrong_plan_is_refused_with_the_reason(change: dict[str, object], reason: str):
    with pytest.raises(PlanError, match=reason):
        read_plan(json.dumps(EMPTY | change))


@pytest.mark.parametrize("text", ["", "[]", "{}", "x"])
def test_other_document_is_refused(text: str):
    with pytest.raises(PlanError, match="no plan"):
        read_plan(text)


@pytest.mark.parametrize("text", ["", "-1", "x", "1.0"])
def test_wrong_seed_is_refused(text: str):
    with pytest.raises(PlanError, match="whole number"):
        parse_seed(text)


def test_step_is_written_with_its_values():
    assert str(Step("close", {"on": "a"})) == "close on='a'"

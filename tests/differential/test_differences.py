"""The rules of known differences: each names a row of docs/conformance.md, and explains no other difference."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.comparison import Difference
from tests.differential.differences import RULES, explain
from tests.differential.plan import Plan, Step
from tests.pages import ROOT, rows

SMALL = Plan("nsqd", {"max-body-size": "9", "mem-queue-size": "2"})
REQUEST = Step("http", {"method": "POST", "path": "/pub", "body": "0123456789"})


EMPTIED = Plan("nsqd", {}, (Step("http", {"method": "POST", "path": "/channel/empty?topic=t"}), Step("settle")))
"""Of a channel with a consumer whose RDY is used up."""


def test_every_rule_names_a_row():
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    subjects = {cells[0] for cells in rows(page)}
    assert [rule.row for rule in RULES if rule.row not in subjects] == []


@pytest.mark.parametrize(
    ("where", "reference", "ours", "row"),
    [
        ("http/headers/server", "absent", "nsqkit/1", "identity"),
        ("stats/body/producers/a/topology_zone", "absent", "", "topology"),
        ("http/headers/connection", "absent", "close", "longer"),
        ("stats/body/topics/t/backend_depth", 1, 2, "order"),
        ("http/body", ["[t] depth: 3  be-depth: 1 msgs: 3"], ["[t] depth: 3  be-depth: 12 msgs: 3"], "order"),
        ("http/body", ["null"], ["[]"], "null"),
        ("damaged files", ["t.diskqueue.000000.dat.bad"], [], "read to its end"),
        ("answers/1", "error E_MPUB_FAILED MPUB failed exiting", "response OK", "deleted"),
    ],
)
def test_known_difference_is_explained(where: str, reference: Any, ours: Any, row: str):
    rule = explain(Difference(1, REQUEST, where, reference, ours), SMALL)
    assert rule is not None
    assert row in rule.row


def test_message_that_nsqd_delivers_while_it_empties_a_channel_is_explained():
    step = EMPTIED.steps[1]
    rule = explain(Difference(1, step, "stats/body/producers/b/in_flight_count", 1, 0), EMPTIED)
    assert rule is not None
    assert "emptied" in rule.row
    assert explain(Difference(1, step, "stats/body/producers/b/in_flight_count", 0, 1), EMPTIED) is None
    assert explain(Difference(0, step, "stats/body/producers/b/in_flight_count", 1, 0), EMPTIED) is None


@pytest.mark.parametrize(
    ("where", "reference", "ours"),
    [
        ("http/headers/server", "nsqd", "absent"),
        ("stats/body/producers/a/topology_zone", "zone", ""),
        ("http/headers/connection", "close", "absent"),
        ("stats/body/topics/t/depth", 1, 2),
        ("http/body", ["[t] depth: 3  be-depth: 1 msgs: 3"], ["[t] depth: 4  be-depth: 1 msgs: 3"]),
        ("http/body", ["[]"], ["null"]),
        ("damaged files", [], ["t.diskqueue.000000.dat.bad"]),
        ("answers/1", "response OK", "error E_MPUB_FAILED MPUB failed exiting"),
        ("messages/a", [["m1", 1]], [["m1", 2]]),
    ],
)
def test_other_difference_is_not_explained(where: str, reference: Any, ours: Any):
    assert explain(Difference(1, REQUEST, where, reference, ours), SMALL) is None


def test_rules_depend_on_the_options_and_the_request():
    plan, small_request = Plan("nsqd"), Step("http", {"method": "POST", "path": "/pub", "body": "1"})
    assert explain(Difference(1, REQUEST, "http/headers/connection", "absent", "close"), plan) is None
    assert explain(Difference(1, small_request, "http/headers/connection", "absent", "close"), SMALL) is None
    deeper = Difference(1, REQUEST, "stats/body/topics/t/backend_depth", 1, 2)
    assert explain(deeper, plan) is None
    assert explain(deeper, Plan("nsqd", {}, (Step("hand over"),))) is not None

"""Shrinking: the smallest plan that fails in the same place."""

from __future__ import annotations

from tests.differential.comparison import Difference
from tests.differential.plan import Plan, Step
from tests.differential.shrink import kind_of, shrink

PLAN = Plan("nsqd", {}, tuple(Step("close", {"on": str(number)}) for number in range(40)))


def fails(plan: Plan) -> list[Difference]:
    """Fail at the first step 31 or 35 if steps 3 and 17 come before it; step 9 alone fails in another place."""
    names = [step.values["on"] for step in plan.steps]
    for number, name in enumerate(names):
        if name in {"31", "35"} and {"3", "17"} <= set(names[:number]):
            return [Difference(number, plan.steps[number], "answers/1", "d1r2t0", number)]
    return [] if "9" not in names else [Difference(0, plan.steps[0], "http/status", 1, 2)]


def test_smallest_plan_is_found():
    small = shrink(PLAN, fails)
    assert [step.values["on"] for step in small.steps] == ["3", "17", "31"]


def test_number_of_runs_is_limited():
    runs = []

    def counted(plan: Plan) -> list[Difference]:
        runs.append(plan)
        return fails(plan)

    small = shrink(PLAN, counted, runs_max=10)
    assert len(runs) == 11, "the first one finds the kind of the failure"
    assert kind_of(fails(small)) == kind_of(fails(PLAN))


def test_kind_has_no_names_and_numbers():
    step = Step("settle")
    first = Difference(3, step, "stats/body/topics/d12r3t0/channels/c0/depth", 1, 2)
    second = Difference(7, step, "stats/body/topics/d12r4t1/channels/c1/depth", 0, 2)
    assert kind_of([first]) == kind_of([second])
    assert kind_of([]) is None

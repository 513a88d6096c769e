"""Makes a plan that fails smaller: parts of its steps are taken out while it still fails in the same place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import attrs

from tests.differential.comparison import Difference
from tests.differential.plan import Plan, Step

RUNS_MAX: Final = 300

_VARIABLE: Final = re.compile(r"d\d+r\d+|\d+")


def kind_of(differences: list[Difference]) -> str | None:
    """Return the kind of a failure: the place of its first difference, without names and numbers."""
    if not differences:
        return None
    first = differences[0]
    place = _VARIABLE.sub("", first.where)
    return f"{first.step.verb} {place}"


def shrink(plan: Plan, run: Callable[[Plan], list[Difference]], *, runs_max: int = RUNS_MAX) -> Plan:
    """Return a small plan that fails as ``plan`` does.

    Args:
        plan: if it does not fail, it is returned as it is.
        run: runs a plan; returns its differences.
        runs_max: the most runs of plans.
    """
    differences = run(plan)
    kind = kind_of(differences)
    if kind is None:
        return plan
    left = runs_max

    def fails(steps: tuple[Step, ...]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and kind_of(run(attrs.evolve(plan, steps=steps))) == kind

    steps = plan.steps
    if fails(head := steps[: differences[0].number + 1]):
        steps = head
    size = len(steps) // 2
    while size and left > 0:
        begin = 0
        while begin < len(steps):
            rest = steps[:begin] + steps[begin + size :]
            if fails(rest):
                steps = rest
            else:
                begin += size
        size //= 2
    return attrs.evolve(plan, steps=steps)

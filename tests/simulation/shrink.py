"""Makes a plan that fails smaller, and keeps a smaller one only if the same invariant breaks.

The end is bisected first; then parts of the steps are taken out, players with all their steps, options of nodes and of
the world, and at last numbers become small. A world skips a step that does not apply, so any part of a plan is a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from tests.simulation.plan import Plan, PlanError, Step, check
from tests.simulation.sizes import run_plan
from tests.simulation.trace import failure_in

RUNS_MAX: Final = 1_500
SMALL: Final = {"count": 1, "size": 0, "kept": 0, "after": 0, "which": 0}
REQUIRED_OPTIONS: Final = frozenset(("topics", "size", "backend", "order"))


def failure_of_plan(plan: Plan) -> str | None:
    """Run a plan; return the kind of its failure, None if there is none."""
    failure = failure_in(run_plan, plan)
    return None if failure is None else failure.kind


def shrink(plan: Plan, *, runs_max: int = RUNS_MAX, fails: Callable[[Plan], str | None] = failure_of_plan) -> Plan:
    """Return a small plan that fails as ``plan`` does.

    Args:
        plan: it has to fail.
        runs_max: the most runs of plans.
        fails: returns the kind of a plan's failure.
    """
    return _Shrinking(plan, runs_max, fails).run()


class _Shrinking:
    def __init__(self, plan: Plan, runs_max: int, fails: Callable[[Plan], str | None]) -> None:
        self._plan = plan
        self._runs_left = runs_max
        self._fails = fails
        self._kind = fails(plan)
        assert self._kind is not None, "the plan does not fail"

    def run(self) -> Plan:
        size = None
        while self._runs_left > 0 and size != (size := self._size()):
            self._bisect_end()
            self._drop_players()
            self._drop_steps()
            self._drop_options()
            self._make_numbers_small()
        return self._plan

    def _size(self) -> tuple[int, int]:
        return len(self._plan.steps), len(self._plan.to_json())

    def _take(self, plan: Plan) -> bool:
        """Keep a plan if it fails in the same way."""
        if self._runs_left <= 0:
            return False
        self._runs_left -= 1
        try:
            check(plan)
        except PlanError:
            return False
        if self._fails(plan) != self._kind:
            return False
        self._plan = plan
        return True

    def _with_steps(self, steps: tuple[Step, ...]) -> Plan:
        return attrs.evolve(self._plan, steps=steps)

    def _bisect_end(self) -> None:
        low, high = 0, len(self._plan.steps)
        while low < high:
            middle = (low + high) // 2
            if self._take(self._with_steps(self._plan.steps[:middle])):
                high = middle
            else:
                low = middle + 1

    def _drop_steps(self) -> None:
        length = len(self._plan.steps) // 2
        while length:
            begin = 0
            while begin < len(self._plan.steps):
                steps = self._plan.steps
                if not self._take(self._with_steps(steps[:begin] + steps[begin + length :])):
                    begin += length
            length //= 2

    def _drop_players(self) -> None:
        for name in list(self._plan.players):
            players = {other: player for other, player in self._plan.players.items() if other != name}
            steps = tuple(step for step in self._plan.steps if step.who.partition("/")[0] != name)
            self._take(attrs.evolve(self._plan, players=players, steps=steps))
        for name in list(self._plan.nodes):
            plan = _without_daemon(self._plan, "nodes", name)
            self._take(attrs.evolve(plan, nodes=_without(plan.nodes, name)))
        for name in list(self._plan.lookupds):
            plan = _without_daemon(self._plan, "lookupds", name)
            self._take(attrs.evolve(plan, lookupds=_without(plan.lookupds, name)))

    def _drop_options(self) -> None:
        for name in set(self._plan.options) - REQUIRED_OPTIONS:
            self._take(attrs.evolve(self._plan, options=_without(self._plan.options, name)))
        for node in self._plan.nodes:
            for name in list(self._plan.nodes[node]):
                nodes = self._plan.nodes | {node: _without(self._plan.nodes[node], name)}
                self._take(attrs.evolve(self._plan, nodes=nodes))

    def _make_numbers_small(self) -> None:
        for number in range(len(self._plan.steps)):
            for smaller in _smaller(self._plan.steps[number]):
                steps = self._plan.steps
                self._take(self._with_steps((*steps[:number], smaller, *steps[number + 1 :])))


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in values.items() if other != name}


def _without_daemon(plan: Plan, kind: str, name: str) -> Plan:
    """Take a node or an nsqlookupd from the lists of the players, and out of the steps."""
    players = {
        player: options | {kind: [each for each in options[kind] if each != name]} if kind in options else options
        for player, options in plan.players.items()
    }
    steps = tuple(step for step in plan.steps if name not in step.who.split("/"))
    return attrs.evolve(plan, players=players, steps=steps)


def _smaller(step: Step) -> Iterator[Step]:
    for name, value in SMALL.items():
        if step.values.get(name, value) > value:
            yield attrs.evolve(step, values=step.values | {name: value})
    if step.values.get("late"):
        yield attrs.evolve(step, values=_without(step.values, "late"))

"""A simulated world: the first bytes are the seed that draws a plan, and all others change its steps.

Each change has three bytes: the kind of the change, the number of a step, and a value. A world skips steps that do not
apply, so every changed plan is a plan.
"""

from __future__ import annotations

from typing import Final

import attrs

from tests.simulation.draw import draw
from tests.simulation.plan import Plan, Step
from tests.simulation.world import World

SEED_LENGTH: Final = 2
CHANGES_MAX: Final = 60
COUNT_MAX: Final = 60
"""Messages of a step; a world has no time for thousands."""

NUMBERS: Final = ("count", "kept", "for_us", "clock_us", "after", "room", "times", "ns_per_byte", "delay_ms")

SEEDS: Final = [bytes((0, number)) + bytes(range(30)) for number in range(12)]
WORDS: Final = [bytes((change, 7, 9)) for change in range(5)]
CALLS_PER_UNIT: Final = 50_000


def run(data: bytes) -> int:
    plan = changed(draw(int.from_bytes(data[:SEED_LENGTH], "big")), data[SEED_LENGTH:])
    World(plan).run()
    return 100 + len(data)


def changed(plan: Plan, data: bytes) -> Plan:
    """Return a plan with the changes that the bytes describe."""
    steps = list(plan.steps)
    for position in range(0, min(len(data) - 2, 3 * CHANGES_MAX), 3):
        change, which, value = data[position : position + 3]
        if steps:
            _change(steps, change % 5, which % len(steps), value)
    return attrs.evolve(plan, steps=tuple(sorted(steps, key=lambda step: step.at_us)))


def _change(steps: list[Step], change: int, which: int, value: int) -> None:
    step = steps[which]
    if change == 0:
        del steps[which]
    elif change == 1:  # to the time of another step
        steps[which] = attrs.evolve(step, at_us=steps[value % len(steps)].at_us)
    elif change == 2:
        steps[which] = attrs.evolve(step, at_us=step.at_us + 1000 * value)
    elif change == 3:  # once more, unless it is a publish, whose number is its name
        if step.verb != "publish":
            steps.append(attrs.evolve(step, at_us=step.at_us + value))
    else:
        limits = {"count": COUNT_MAX}
        numbers = {name: min(value, limits.get(name, value)) for name in NUMBERS if type(step.values.get(name)) is int}
        steps[which] = attrs.evolve(step, values=step.values | numbers)

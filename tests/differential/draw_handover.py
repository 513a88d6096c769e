"""Draws plans in which nsqd and nsqkit hand their data paths to each other: both ways at once, several times."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.differential.draw import Drawing
from tests.differential.plan import Plan, Step

OPTIONS: Final[tuple[dict[str, str], ...]] = (
    {"mem-queue-size": "2", "max-bytes-per-file": "200"},
    {"mem-queue-size": "0", "sync-every": "3"},
    {"mem-queue-size": "5", "max-bytes-per-file": "1000"},
    {},
)
HANDOVERS_MAX: Final = 3


def draw_handover(seed: int) -> Plan:
    """Return the plan with this number: the programs are stopped, exchange their data paths, and continue."""
    random = Random(f"handover/{seed}")
    options = random.choice(OPTIONS)
    drawing = Drawing(random, options, mild=True)
    steps: list[Step] = []
    for _ in range(random.randint(1, HANDOVERS_MAX)):
        steps += [*drawing.steps(random.randint(10, 40)), Step("settle"), Step("hand over")]
        drawing.lose_connections()
    return Plan("nsqd", dict(options), (*steps, *drawing.steps(random.randint(0, 15)), *drawing.drain()))

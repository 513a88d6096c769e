"""Draws the faults of an nsqd that stays ill until the end, in a world where another nsqd is healthy."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from tests.simulation.plan import Step

KINDS: Final = ("kill", "stop", "refuse", "cut", "mute", "partition")
DISK_KINDS: Final = ("fill disk", "fail disk", "fail disk") * 4
MANY: Final = 10_000


def ailments(
    random: Random, name: str, options: dict[str, Any], players: list[str], duration_us: int
) -> Iterator[Step]:
    """Draw the steps of one nsqd, and change its options so that its disk is used."""
    begin = random.randint(1, duration_us // 3)
    has_disk = options["durability"] != "memory"
    options["mem_queue_size"] = 0
    verb = random.choice((*KINDS, *DISK_KINDS) if has_disk else KINDS)
    if verb in {"cut", "mute"}:
        values = {"for_us": 300_000} if verb == "mute" else {}
        for player in players:
            for _ in range(3):
                yield Step(begin + random.randint(0, duration_us), f"{player}/{name}", verb, values)
    elif verb in {"kill", "stop"}:
        yield Step(begin, name, verb)
        yield Step(begin + random.choice((50_000, duration_us)), name, "start")
    elif verb in {"refuse", "partition"}:
        yield Step(begin, name, verb, {"for_us": duration_us})
    elif verb == "fill disk":
        yield Step(begin, name, verb, {"after": random.choice((0, 10))})
    else:
        failing, syncs = {"after": random.choice((0, 5)), "count": MANY}, {"syncs": MANY}
        yield Step(begin, name, verb, random.choice((failing, syncs, syncs)))
    if has_disk and random.random() < 0.7:
        yield Step(begin, name, "slow disk", {"for_us": random.choice((300_000, 1_000_000))})

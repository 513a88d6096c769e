"""Draws which clients of a driver world are used without ``await``, by threads."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import attrs

from tests.simulation.plan import Plan, Step

SHARE: Final = 0.125
"""The part of the worlds that have threads."""
WAYS: Final = ("iterate", "receive", "receive soon", "receive soon", "batches", "receive batch", "run", "run threads")
LEFT_OUT: Final = frozenset(
    (
        *("confirms", "dead_letters", "end_on_permanent_error", "giving_up"),
        *("hook_fails", "mode", "run", "thread_us"),
    )
)
"""Options of a consumer that its threads do not use."""
UNLEASED: Final = frozenset(("linger", "max_outstanding_bytes", "policy", "publish_attempts", "publish_timeout"))
"""Options of a producer with which no thread leases its connection."""
LEFT_OUT_STEPS: Final = frozenset(("cancel", "connect wrong", "receive again"))
"""Steps that no thread can do, and one that ends a consumer by an error."""


def with_threads(plan: Plan) -> Plan:
    """Return the plan, in some worlds with clients that threads use."""
    random = Random(f"{plan.seed}/threads")
    return converted(plan, random) if random.random() < SHARE and "relisting" not in plan.options else plan


def converted(plan: Plan, random: Random) -> Plan:
    """Return the plan with threads."""
    kinds = random.choice((["producer"], ["consumer"], ["consumer"], ["producer", "consumer"]))
    alone = {name for name in plan.players if random.random() < 0.5}
    players = {
        name: _threaded(random, player, is_alone=name in alone) if player["kind"] in kinds else player
        for name, player in plan.players.items()
    }
    counts = {name: player["threads"] for name, player in players.items() if player["kind"] == "thread producer"}
    names = {name for name, player in players.items() if "threads" in player}
    steps = [
        _step(random, step, counts) for step in plan.steps if not (step.who in names and step.verb in LEFT_OUT_STEPS)
    ]
    steps += [step for name in counts for step in _rows(random, name, plan, counts[name])]
    steps.sort(key=lambda step: step.at_us)
    options = plan.options | {"interrupted_lines": random.choice((0.0, 0.0, 0.02, 0.1))}
    return attrs.evolve(plan, options=options, players=players, steps=tuple(steps))


def _threaded(random: Random, player: dict[str, Any], *, is_alone: bool) -> dict[str, Any]:
    if player["kind"] == "producer":
        if is_alone:
            player = {key: value for key, value in player.items() if key not in UNLEASED}
            player["nodes"] = player["nodes"][:1]
        return player | {"kind": "thread producer", "threads": random.choice((1, 2, 3))}
    kept = {key: value for key, value in player.items() if key not in LEFT_OUT}
    return kept | {
        "kind": "thread consumer",
        "fates": [*player["fates"], *(["stop"] * (random.random() < 0.3))],
        "threads": [random.choice(WAYS) for _ in range(random.choice((1, 2, 2, 3)))],
        "batch": random.choice(({"max_messages": 3, "max_wait": 0.2}, {"max_messages": 2, "max_wait": 0.05}, {})),
        "timeout": random.choice((0.01, 0.05, 0.3)),
    }


def _step(random: Random, step: Step, counts: dict[str, int]) -> Step:
    if step.verb != "publish" or step.who not in counts:
        return step
    values = {key: value for key, value in step.values.items() if not key.startswith("cancel")}
    return attrs.evolve(step, values=values | {"thread": random.randrange(counts[step.who])})


def _rows(random: Random, name: str, plan: Plan, thread_count: int) -> Iterator[Step]:
    """Yield publishes of one thread in a row, some with one of another thread, and some at the end of a producer."""
    last_us = max((step.at_us for step in plan.steps), default=1)
    topics = sorted({step.values["topic"] for step in plan.steps if step.verb == "publish"})
    begins = [step.at_us for step in plan.steps if step.who == name and step.verb == "leave"]
    begins += [random.randint(1, last_us) for _ in range(random.choice((0, 1, 2)))]
    for begin in begins if topics else ():
        thread, topic = random.randrange(thread_count), random.choice(topics)
        at_us = max(begin - random.choice((0, 0, 2_000, 6_000)), 0)
        for _ in range(random.choice((2, 4, 8))):
            values = {"how": "publish", "topic": topic, "thread": thread, "size": random.choice((0, 0, 600, 1_500))}
            if random.random() < 0.15:
                values["thread"] = random.randrange(thread_count)
            yield Step(at_us + random.choice((0, 0, 1_000, 3_000)), name, "publish", values)

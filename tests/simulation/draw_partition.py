"""Draws the Spark partitions of a world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.simulation.plan import Step


def options(random: Random, named: Callable[[str], Random], *, is_exact: bool) -> dict[str, Any]:
    """Return a partition.

    Args:
        random: draws what all partitions have.
        named: returns the random generator of one part of the plan.
        is_exact: each message has to have exactly one row.
    """
    options: dict[str, Any] = {"rdy": random.choice((1, 3, 20)), "chunk": random.choice((1, 3, 10))}
    options |= {"messages": random.choice((5, 20, 1000))}
    options |= {name: 0.2 for name in ("late_share", "cut_share") if named(name).random() < 0.3}
    if named("executors").random() < 0.5:
        options["fresh"] = True
    limits = named("limits of batches")
    if limits.random() < 0.4:
        options["limits"] = {
            "max_in_flight": limits.choice((1, 2, 5, 20)),
            "records_max": limits.choice((None, 1, 5, 20)),
        }
    removal = named("removal of batches")
    if removal.random() < 0.5:
        horizon_ms = 1_000_000 if is_exact else removal.choice((10_000, 1_000_000))  # no attempt sleeps longer
        options |= {"retain": removal.choice((0, 0, 1, 3)), "dedup_horizon_ms": horizon_ms}
    return {"kind": "partition", "topic": "t", "channel": "c", **options}


def steps(
    name: str, random: Random, times: Callable[[Random, int], Iterator[int]], *, is_exact: bool
) -> Iterator[Step]:
    """Yield the steps of a partition."""
    verbs = ["attempt", "attempt", "kill"] if is_exact else ["attempt", "attempt", "kill", "stall"]
    for at_us in times(random, 8):
        verb = random.choice(verbs)
        values = {} if verb == "attempt" else {"which": random.randrange(2)}
        values |= {"for_us": random.choice((500_000, 4_000_000))} if verb == "stall" else {}
        yield Step(at_us, name, verb, values)

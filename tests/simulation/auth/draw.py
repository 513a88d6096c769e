"""Draws the auth servers of a plan, in one world of eight, with the secrets of its clients and the servers' faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import attrs

from tests.simulation.plan import Plan, Step

SECRETS: Final = ("all", "all", "some", "other", "wrong")
"""The names of secrets; ``wrong`` is never granted."""


def with_auth(plan: Plan, *, times: Callable[[Random, int], Iterator[int]]) -> Plan:
    """Return the plan, with auth servers in one world of eight.

    The number of consumers must not be limited: the oracle compares it when a SUB arrives, and not when it has waited.

    Args:
        plan: it has all nodes, players and steps.
        times: draws the times of steps.
    """
    random = Random(f"{plan.seed}/plan/auth")
    if random.random() >= 1 / 8:
        return plan
    has_faults = random.random() < 0.7
    names = [name for name in plan.nodes if random.random() < 0.7] or list(plan.nodes)
    delays_us = random.choice(((0,), (1_000, 50_000), (1_000, 500_000, 3_000_000)))
    nodes, steps = dict(plan.nodes), list(plan.steps)
    for name in names:
        auth = {
            "servers": random.choice((1, 1, 2, 3)),
            "delays_us": delays_us,
            "mistakes": random.choice((0, 0.1, 0.3)) if has_faults else 0,
            "grants": {"all": _grant(random, is_whole=True)} | {each: _grant(random) for each in ("some", "other")},
        }
        nodes[name] = plan.nodes[name] | {"auth": auth}
        if has_faults:
            steps += [_step(random, at_us, name) for at_us in times(random, random.randint(1, 6))]
    players = {name: _player(random, player) for name, player in plan.players.items()}
    for name, player in players.items():
        if player["kind"] == "foreign":
            for at_us in times(random, 5):
                values = {"what": "AUTH by name", "id": 0, "secret": random.choice(SECRETS)}
                steps.append(Step(at_us, name, "send", values))
    steps.sort(key=lambda step: step.at_us)
    return attrs.evolve(plan, nodes=nodes, players=players, steps=tuple(steps))


def _grant(random: Random, *, is_whole: bool = False) -> dict[str, Any]:
    entries = [
        {
            "topic": random.choice((".*", "^t$", "^[tu]", "v#")),
            "channels": random.choice(([".*"], ["^a$"], ["^$", "^b$"], [])),
            "permissions": random.choice((["publish"], ["subscribe"], ["publish", "subscribe"])),
        }
        for _ in range(random.randint(1, 3))
    ]
    if is_whole:
        entries = [{"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}]
    return {"ttl": random.choice((1, 1, 2, 5)), "entries": entries}


def _player(random: Random, player: dict[str, Any]) -> dict[str, Any]:
    """Give a player the name of its secret; one that uses nsqlookupds has to find a broker that accepts it."""
    secret = "all" if player.get("lookupds") else random.choice(("all", "all", *SECRETS))
    if player["kind"] == "foreign" and random.random() < 0.4:
        return player  # it sends no AUTH by itself
    return player | {"secret": secret}


def _step(random: Random, at_us: int, node: str) -> Step:
    chance, secret = random.random(), random.choice(SECRETS[:-1])
    if chance < 0.4:
        how, which = random.choice(("error", "garbage", "late")), random.choice(("all", "all", "0"))
        for_us = random.choice((100_000, 2_000_000, 6_000_000))
        return Step(at_us, node, "fail auth", {"how": how, "server": which, "for_us": for_us})
    if chance < 0.7:
        return Step(at_us, node, "revoke", {"secret": secret, "entries": random.choice((None, []))})
    return Step(at_us, node, "grant", {"secret": secret, "grant": _grant(random, is_whole=random.random() < 0.5)})

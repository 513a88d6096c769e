"""Draws the auth servers of a driver world, in a part of those in which each nsqd may have faults, and their faults."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import attrs

from tests.simulation.auth.leaks import secret_of
from tests.simulation.driver.dead_letters import SUFFIX
from tests.simulation.plan import Plan, Step

SHARE: Final = 1 / 7
NAMES: Final = ("auth-1", "auth-2")
LIMITS: Final[tuple[list[str], ...]] = (["subscribe"], ["publish"], [])
CLIENTS: Final = frozenset(("producer", "consumer"))
LATE_US: Final = 4_000_000
"""Publishes until then meet grants that have expired."""


def with_auth(random: Random, plan: Plan, duration_us: int) -> Plan:
    """Return the plan, with auth servers in a ``SHARE`` of the worlds."""
    if random.random() >= SHARE:
        return plan
    names = list(NAMES[: random.choice((1, 1, 2))])
    ttl = random.choice((1, 1, 2, 60))
    servers = {
        name: {"kind": "auth server", "ttl": ttl, **({"lingers": True} if random.random() < 0.5 else {})}
        for name in names
    }
    some = [name for name in plan.nodes if random.random() < 0.8] or list(plan.nodes)
    timeout_ns = random.choice((1, 5, 20, 20, 0)) * 10**9  # 0 is no limit
    auth = {
        "auth": names,
        "auth_http_request_method": random.choice(("get", "post")),
        "http_client_request_timeout_ns": timeout_ns,
    }
    nodes = {name: options | auth if name in some else options for name, options in plan.nodes.items()}
    players = {name: _with_secret(name, player) for name, player in plan.players.items()}
    steps = [*plan.steps, *_publishes(random, plan)]
    if random.random() < 0.7:
        for _ in range(random.choice((1, 1, 1, 3))):
            chosen = names if random.random() < 0.7 else [random.choice(names)]
            steps += _fault(random, chosen, plan, duration_us)
    steps.sort(key=lambda step: step.at_us)
    return attrs.evolve(plan, nodes=nodes, players=players | servers, steps=tuple(steps))


def _with_secret(name: str, player: dict[str, Any]) -> dict[str, Any]:
    if player["kind"] not in CLIENTS:
        return player
    more: dict[str, Any] = {"auth_secret": secret_of(name)}
    if "dead_letters" in player:
        more["dead_letters"] = player["dead_letters"] | {"auth_secret": secret_of(name + SUFFIX)}
    return player | more


def _publishes(random: Random, plan: Plan) -> Iterator[Step]:
    topics = [topic for topic in plan.options["topics"] if not topic.startswith("dead")]
    for name, player in plan.players.items():
        if player["kind"] == "producer":
            for _ in range(random.choice((0, 2, 4))):
                values = {"how": "publish", "topic": random.choice(topics)}
                yield Step(random.randint(1, LATE_US), name, "publish", values)


def _fault(random: Random, servers: list[str], plan: Plan, duration_us: int) -> Iterator[Step]:
    """Yield a fault of servers, its end, and the ends of connections meanwhile."""
    begin = 1 if random.random() < 0.4 else random.randint(1, duration_us)
    how = random.choice(("hang", "hang", "hang", "slow", "error", "garbage", "cut", "limit", "limit", "refuse", "kill"))
    lasts_us = random.choice((300_000, 2_000_000, 8_000_000) if how != "hang" else (2_000_000, 8_000_000, 8_000_000))
    for server in servers:
        if how == "kill":
            yield Step(begin, server, how)
            yield Step(begin + lasts_us, server, "start")
        elif how == "refuse":
            yield Step(begin, server, how, {"for_us": lasts_us})
        else:
            values: dict[str, Any] = {"how": how}
            if how == "limit":
                values = {"how": "grant", "permissions": random.choice(LIMITS)}
            yield Step(begin, server, "answer", values)
            yield Step(begin + lasts_us, server, "answer", {"how": "grant"})
    for name, player in plan.players.items():
        for node in player["nodes"] or plan.nodes:
            if player["kind"] in CLIENTS and random.random() < 0.5:
                at_us = begin + random.choice((1, 100_000, lasts_us // 2))
                yield Step(at_us, f"{name}/{node}", "cut")

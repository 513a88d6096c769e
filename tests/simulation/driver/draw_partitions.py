"""Draws which consumers of a driver world are partitions of Spark."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import attrs

from tests.simulation.plan import Plan, Step

SHARE: Final = 0.1
"""The part of the worlds that may have partitions."""
LEFT_OUT: Final = frozenset(("relisting", "reconfiguring", "limiting", "late"))
"""Options of worlds that have no partitions."""


def with_partitions(plan: Plan) -> Plan:
    """Return the plan, in some worlds with partitions in the place of consumers."""
    random = Random(f"{plan.seed}/partitions")
    has_auth = any(player["kind"] == "auth server" for player in plan.players.values())
    if random.random() >= SHARE or plan.lookupds or has_auth or LEFT_OUT & plan.options.keys():
        return plan
    players = {
        name: _partition(random, name, player) if _is_plain(player) else player for name, player in plan.players.items()
    }
    dead = [player["spec"].get("dead_letter_topic") for player in players.values() if player["kind"] == "partition"]
    topics = plan.options["topics"] | {topic: ["a"] for topic in dead if topic}
    duration_us = max((step.at_us for step in plan.steps), default=1)
    partitions = {name for name, player in players.items() if player["kind"] == "partition"}
    steps = [step for step in plan.steps if step.who not in partitions]
    for name in sorted(partitions):
        for _ in range(random.choice((0, 1, 3))):
            verb = random.choice(("attempt", "attempt", "kill"))
            steps.append(Step(random.randint(1, duration_us), name, verb, {"which": random.randrange(3)}))
    options = plan.options | {"topics": topics}
    return attrs.evolve(plan, options=options, players=players, steps=tuple(sorted(steps, key=lambda step: step.at_us)))


def _is_plain(player: dict[str, Any]) -> bool:
    """Return whether a player is a consumer without a topic of dead letters, which a partition has of its own."""
    return player["kind"] == "consumer" and "dead_letters" not in player


def _partition(random: Random, name: str, player: dict[str, Any]) -> dict[str, Any]:
    connection = {name: player[name] for name in ("heartbeat_interval", "read_timeout", "reconnect_delay_max")}
    way = random.choice(("handler", "rows", "slots", "slots"))
    options: dict[str, Any] = {
        "kind": "partition",
        **{name: player[name] for name in ("nodes", "topic", "channel")},
        "way": way,
        "rdy": random.choice((1, 2, 5, 20)),
        "connection": connection,
        "spec": {
            "msg_timeout": 1.0,
            "linger": random.choice((0.0, 0.02, 0.2)),
            "empty_for": random.choice((0.1, 0.5, None)),
            "deadline": random.choice((0.3, 1.0, 3.0)),
            "stop_after_linger": random.random() < 0.3,
            "chunk_bytes": random.choice((50, 1 << 20)),
            "connect_timeout": random.choice((0.3, 2.0)),
            "fail_on_node_loss": random.random() < 0.5,
        },
    }
    if random.random() < 0.3:
        options["records_max"] = random.choice((1, 5, 20))
    if random.random() < 0.2:
        options["bytes_max"] = random.choice((1, 60, 400))
    if random.random() < 0.3:
        options["thread_us"] = random.choice((300_000, 1_500_000))
    if way == "handler":
        options["fates"] = ["finish"] * random.choice((2, 6)) + [
            fate for fate in ("raise", "requeue") if random.random() < 0.5
        ]
    if way != "rows" and random.random() < 0.3:
        options["spec"] |= {"max_attempts": random.choice((1, 2)), "dead_letter_topic": f"dead-{name}"}
    if way == "slots" and random.random() < 0.5:
        options["store_fails"] = 0.1
    return options

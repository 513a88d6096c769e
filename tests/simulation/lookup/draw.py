"""Draws the nsqlookupds of a plan, in one world of five, with the consumers that use them and their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import attrs

from tests.simulation.lookup.raw import ITEMS
from tests.simulation.plan import Plan, Step

FAULTS: Final = (
    *("cut", "stall", "half-open", "slow", "kill", "power cut", "stop", "suspend", "refuse"),
    *("answers", "tombstones", "deletion", "move"),
)
HOW: Final = ("old", "empty", "error", "late", "garbage")
INJECTED: Final = (b"\x00\x00\x00\x02OK", b"\x00\x00\x00\x09E_INVALID", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{]")
STOPS: Final = ("kill", "power cut", "stop")


def with_lookupds(
    plan: Plan, *, swarm: Callable[[Random, tuple[str, ...]], set[str]], times: Callable[[Random, int], Iterator[int]]
) -> Plan:
    """Return the plan, with nsqlookupds in one world of five.

    Args:
        plan: it has all nodes, players and steps.
        swarm: draws which of the faults exist.
        times: draws the times of steps.
    """
    random = Random(f"{plan.seed}/plan/lookups")
    if random.random() >= 1 / 5:
        return plan
    drawing = _Drawing(plan, random, swarm(random, FAULTS), times)
    lookupds = {
        f"lookupd-{number}": {
            "inactive_producer_timeout_ns": random.choice((20, 20, 40)) * 1_000_000_000,
            "tombstone_lifetime_ns": random.choice((100, 1_000, 5_000)) * 1_000_000,
        }
        for number in range(1, random.randint(1, 3) + 1)
    }
    players = {name: drawing.player(player, list(lookupds)) for name, player in plan.players.items()}
    steps = [step for name in lookupds for step in drawing.lookupd(name)]
    for name, options_of_one in lookupds.items():
        steps += drawing.tombstones(name, options_of_one["tombstone_lifetime_ns"] // 1000)
        steps += drawing.tombstones_after_starts(name)
    for node in plan.nodes:
        steps += drawing.moves(node)
        steps += [step for name in lookupds for step in drawing.link(f"{node}/{name}")]
    options = plan.options | {"consumer": plan.options["consumer"] | drawing.consumer_options()}
    ordered = sorted((*steps, *plan.steps), key=lambda step: step.at_us)
    return attrs.evolve(plan, lookupds=lookupds, players=players, options=options, steps=tuple(ordered))


class _Drawing:
    def __init__(
        self, plan: Plan, random: Random, faults: set[str], times: Callable[[Random, int], Iterator[int]]
    ) -> None:
        self._plan, self._random, self._faults, self._times = plan, random, faults, times

    def _random_of(self, name: str) -> Random:
        return Random(f"{self._plan.seed}/plan/{name}/lookups")

    def player(self, player: dict[str, Any], lookupds: list[str]) -> dict[str, Any]:
        """Return a player, which may be one that uses nsqlookupds."""
        if player["kind"] != "consumer" or self._random.random() < 0.25:
            return player
        count = self._random.choice((len(lookupds), 1))
        return player | {"lookupds": sorted(self._random.sample(lookupds, count))}

    def consumer_options(self) -> dict[str, Any]:
        random = self._random
        return {
            "lookupd_poll_interval": random.choice((1.0, 2.0, 5.0)),
            "lookupd_poll_jitter": random.choice((0.0, 0.3)),
            "lookupd_poll_timeout": random.choice((0.5, 5.0)),
            "reconnect_delay_max": random.choice((1.0, 15.0)),
        }

    def moves(self, node: str) -> Iterator[Step]:
        """Draw the lives that begin at another address."""
        random = self._random_of(node)
        starts = [step.at_us for step in self._plan.steps if (step.who, step.verb) == (node, "start")]
        for number, at_us in enumerate(starts if "move" in self._faults else ()):
            if random.random() < 0.5:
                host = random.choice((node, f"{node}-{number}"))
                yield Step(max(at_us - 1, 0), node, "move", {"host": host, "tcp_port": 5000 + 2 * number})

    def link(self, who: str) -> Iterator[Step]:
        """Draw the faults of the network between a broker and an nsqlookupd."""
        yield from self._injections(who)
        random = self._random_of(who)
        kinds = [fault for fault in ("cut", "stall", "half-open", "slow") if fault in self._faults]
        if not kinds or random.random() < 0.3:
            return
        for at_us in self._times(random, random.choice((1, 2, 5))):
            kind, ways = random.choice(kinds), random.choice(("both", "both", "up", "down"))
            values: dict[str, Any] = {"ways": "both" if kind == "cut" else ways}
            if kind == "stall":
                values["for_us"] = random.choice((1_000, 900_000, 3_000_000))
            elif kind == "slow":
                values["ns_per_byte"] = random.choice((0, 10_000, 1_000_000))
            yield Step(at_us, who, kind, values)

    def _injections(self, who: str) -> Iterator[Step]:
        """Draw bytes that no nsqlookupd sends."""
        random = self._random_of(f"{who}/injections")
        for at_us in self._times(random, 2) if random.random() < 0.2 else ():
            yield Step(at_us, who, "inject", {"data": random.choice(INJECTED).hex()})

    def lookupd(self, name: str) -> Iterator[Step]:
        """Draw the faults of an nsqlookupd, what an admin does there, and clients that are none."""
        random = self._random_of(f"{name}/raw")
        for at_us in self._times(random, 4) if random.random() < 0.3 else ():
            yield Step(at_us, name, "raw", {"what": random.choice(tuple(ITEMS))})
        yield from self._ephemeral(name)
        random = self._random_of(name)
        kinds = [fault for fault in FAULTS[4:] if fault in self._faults and fault != "move"]
        if not kinds:
            return
        for at_us in self._times(random, random.randint(1, 8)):
            kind = random.choice(kinds)
            for_us = random.choice((50_000, 2_000_000, 10_000_000))
            if kind in STOPS:
                yield Step(at_us, name, kind)
                yield Step(at_us + random.choice((0, 1, for_us)), name, "start")
            elif kind in ("suspend", "refuse"):
                yield Step(at_us, name, kind, {"for_us": for_us})
            elif kind == "answers":
                yield Step(at_us, name, kind, {"how": random.choice(HOW), "for_us": for_us})
            else:
                yield from self._administration(name, kind, random, at_us)

    def _ephemeral(self, name: str) -> Iterator[Step]:
        """Draw an ephemeral channel that is listed at the begin, so before most topics are new."""
        random = self._random_of(f"{name}/ephemeral")
        if random.random() < 0.4:
            topic = random.choice(self._plan.options["topics"])
            yield Step(random.choice((0, 1_000)), name, "make channel", {"topic": topic, "channel": "e#ephemeral"})

    def tombstones(self, name: str, lifetime_us: int) -> Iterator[Step]:
        """Draw tombstones of brokers that have the topic, and when all is compared: just before and after their end."""
        random = self._random_of(f"{name}/tombstones")
        publishes = [step for step in self._plan.steps if step.verb == "publish"]
        for step in random.choices(publishes, k=2) if publishes and "tombstones" in self._faults else ():
            at_us = step.at_us + random.choice((1_000, 500_000))
            values = {"topic": step.values["topic"], "channel": "a"}
            node = self._plan.players[step.who]["node"]
            yield Step(at_us, name, "tombstone topic", values | {"node": node})
            if "deletion" in self._faults:
                yield Step(step.at_us, node, "make channel", values)
                yield Step(at_us + lifetime_us // 2, node, "delete channel", values)
            for end_us in (lifetime_us - 1, lifetime_us, lifetime_us + random.choice((1_000, 1_000_000))):
                yield Step(at_us + end_us, name, "list")

    def tombstones_after_starts(self, name: str) -> Iterator[Step]:
        """Draw tombstones of brokers that have started again, whose earlier connections may be open."""
        random = self._random_of(f"{name}/tombstones after starts")
        starts = [step for step in self._plan.steps if step.who in self._plan.nodes and step.verb == "start"]
        for step in starts if "tombstones" in self._faults else ():
            values = {"topic": random.choice(self._plan.options["topics"]), "channel": "a"}
            yield Step(max(step.at_us - 1_000_000, 0), step.who, "make channel", values)
            yield Step(step.at_us + 300_000, step.who, "make channel", values)
            yield Step(step.at_us + 600_000, name, "tombstone topic", values | {"node": step.who})

    def _administration(self, name: str, kind: str, random: Random, at_us: int) -> Iterator[Step]:
        """Draw what an admin does; a deletion is done in an nsqlookupd, in a broker, or in both."""
        values = {"topic": random.choice(self._plan.options["topics"]), "channel": random.choice(("a", "b"))}
        node = random.choice(list(self._plan.nodes))
        if kind == "tombstones":
            yield Step(at_us, name, "tombstone topic", values | {"node": node})
        elif random.random() < 0.2:
            yield Step(at_us, name, random.choice(("make topic", "make channel")), values)
        else:
            verb = random.choice(("delete topic", "delete channel"))
            for who in random.choice(([name], [node], [name, node])):
                yield Step(at_us, who, verb, values)

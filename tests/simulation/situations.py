"""Draws situations: a few steps that belong together, and that independent steps seldom make.

Each begins with a publish to a consumer that is connected, so that it holds messages. Each has a random generator of
its own, and exists in a part of the worlds that have its features and faults. One of a world is late: it comes after
all other steps, which often end connections or take the messages before.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Final

import attrs

from tests.simulation.plan import Plan, Step

SHARE: Final = 0.8
"""In how many of the worlds that may have it a situation exists."""

NEAR_US: Final = (20_000, 120_000, 300_000)
"""How long after a publish its messages are taken for delivered; the network delays by up to 50 ms in a direction."""

CONNECT_US: Final = 250_000
QUIET_US: Final = 600_000
"""How long before its publish a consumer connects, and how long after all other steps the late situation begins."""

TOUCHES_MAX: Final = 12
BURST_ID: Final = 10_000
LATE_ID: Final = 10_100
"""From which on publishes of situations are numbered; those of single steps have lower numbers."""
EMPTIED_ID: Final = 10_200
WAITING_ID: Final = 10_300
UNREAD_ID: Final = 10_400


@attrs.frozen
class Holding:
    """A consumer to which messages are published.

    Attributes:
        name: of the consumer.
        link: its connection to the broker.
        producer: the one that publishes.
        node: the broker.
        place: the topic and the channel.
        at_us: the time of the publish.
    """

    name: str
    link: str
    producer: str
    node: str
    place: dict[str, str]
    at_us: int

    def does(self, at_us: int, *fates: str, count: int = 0, kept: int = 0) -> Step:
        """Have the consumer handle messages; it connects first if it has to."""
        return Step(max(at_us, 0), self.name, "handle", {"count": count, "kept": kept, "fates": list(fates)})

    def publishes(self, at_us: int, number: int, *, count: int = 1, delay_ms: int | None = None, size: int = 0) -> Step:
        """Have the producer publish ``count`` messages, as the publish of this number."""
        values = {"id": number, "topic": self.place["topic"], "count": count, "delay_ms": delay_ms, "size": size}
        return Step(at_us, self.producer, "publish", values)


def with_situations(plan: Plan, *, faults: Collection[str], features: Collection[str]) -> Plan:
    """Return the plan, with the steps of situations.

    Args:
        plan: it has all nodes, players and steps.
        faults: those that exist in the world.
        features: likewise.
    """
    consumers = {name: player for name, player in plan.players.items() if player["kind"] == "consumer"}
    publishes = [step for step in plan.steps if step.verb == "publish" and step.who in plan.players]
    names = {*faults, *features, *(("faults",) if faults else ())}
    steps = list(plan.steps)
    late = Random(f"{plan.seed}/plan/late situation").choice(list(SITUATIONS))
    for kind, (needed, draw) in SITUATIONS.items():
        random = Random(f"{plan.seed}/plan/situation/{kind}")
        if not needed <= names or random.random() >= SHARE:
            continue
        fits = [
            (name, step)
            for name, player in consumers.items()
            for step in publishes
            if step.values["topic"] == player["topic"] and not step.values.get("is_cancelled")
            if "ephemeral" not in needed or player["channel"].endswith("#ephemeral")
        ]
        found = _holding(random, plan, fits)
        if found is not None and kind == late:
            found = attrs.evolve(found, at_us=max(step.at_us for step in steps) + QUIET_US)
            steps += _begin_late(plan, found)
        if found is not None:
            steps += [found.does(found.at_us - CONNECT_US), *draw(random, plan, found, names)]
    return attrs.evolve(plan, steps=tuple(sorted(steps, key=lambda step: step.at_us)))


def _holding(random: Random, plan: Plan, fits: list[tuple[str, Step]]) -> Holding | None:
    if not fits:
        return None
    name, step = random.choice(fits)
    node, consumer = plan.players[step.who]["node"], plan.players[name]
    place = {key: consumer[key] for key in ("topic", "channel")}
    return Holding(name, f"{name}/{node}", step.who, node, place, step.at_us)


def _begin_late(plan: Plan, found: Holding) -> Iterator[Step]:
    """End what keeps messages from the consumer, and publish some to it."""
    at_us = found.at_us - QUIET_US // 2
    yield Step(at_us, found.node, "start")
    for topic_or_channel in ("topic", "channel"):
        yield Step(at_us, found.node, f"unpause {topic_or_channel}", found.place)
    for link in (found.link, f"{found.producer}/{found.node}"):
        yield Step(at_us, link, "cut", {"ways": "both"})  # it may be half-open
    for at_us in (found.at_us - CONNECT_US, found.at_us):
        yield Step(at_us, found.name, "max in flight", {"count": plan.options["consumer"]["max_in_flight"]})
        yield Step(at_us, found.name, "resume")
        yield Step(at_us, found.producer, "connect")
    for number in range(3):
        yield found.publishes(found.at_us, LATE_ID + number)


def _lost(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """A consumer is lost with messages, and before they time out an admin acts on its channel, or it comes back.

    Sometimes it is not lost, and an admin takes its messages.
    """
    cut_us = found.at_us + random.choice(NEAR_US)
    if random.random() < 0.8:
        yield Step(cut_us, found.link, "cut", {"ways": "both"})
    at_us = cut_us + random.choice((1_000, 100_000, 300_000))
    if random.random() < 0.8:
        verb = random.choice(("empty channel", "empty channel", "empty channel", "delete channel", "delete topic"))
        yield Step(at_us, found.node, verb, found.place)
    yield found.does(at_us + random.choice((0, 1_000, 1_500_000)))


def _ended_late(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """A channel is deleted, and is there again before the connection of its consumer has been closed."""
    at_us = found.at_us + random.choice(NEAR_US)
    yield Step(at_us, found.link, "late end", {"for_us": random.choice((20_000, 500_000, 3_000_000))})
    yield Step(at_us, found.node, random.choice(("delete channel", "delete channel", "delete topic")), found.place)
    yield Step(at_us + random.choice((0, 10_000)), found.node, "make channel", found.place)


def _stalled(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """The network stalls until messages have timed out, so two deliveries of them arrive together."""
    for_us = round(1000 * plan.options["msg_timeout_ms"] * random.choice((1.1, 1.6)))
    yield Step(max(found.at_us - 1_000, 0), found.link, "stall", {"ways": "down", "for_us": for_us})


def _touched(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """Messages are touched again and again, until they may not be held any longer."""
    timeout_us = 1000 * plan.options["msg_timeout_ms"]
    most_us = plan.nodes[found.node]["max_msg_timeout_ns"] // 1000
    at_us = found.at_us + random.choice(NEAR_US)
    yield found.does(at_us, "touch", count=3)
    for _ in range(TOUCHES_MAX):
        at_us += round(timeout_us * random.choice((0.3, 0.6, 0.9)))
        yield found.does(at_us, "touch", kept=10)
        if at_us > found.at_us + most_us:
            return


def _tested(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """Handling fails, and the test message of backoff is lost, times out, or is requeued by its consumer."""
    consumer = plan.options["consumer"]
    wait_us = round(1e6 * min(2 * consumer["backoff_multiplier"], consumer["max_backoff_duration"]))
    at_us = found.at_us + random.choice(NEAR_US[1:])
    for later_us in (0, 150_000):
        yield found.does(at_us + later_us, "requeue 0 backoff", count=100)
    at_us += wait_us + random.choice(NEAR_US[1:])
    if "faults" in names and random.random() < 0.6:
        if random.random() < 0.5:  # its handler has begun
            yield found.does(at_us, "keep", count=100)
        yield Step(at_us, found.link, "cut", {"ways": "both"})
    else:
        yield found.does(at_us, random.choice(("keep", "requeue 0", "requeue 0 backoff")), count=100)
    yield found.does(at_us + random.choice((0, 1_000, 200_000)))


def _left(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """A connection is left while messages of it are handled."""
    at_us = found.at_us + random.choice(NEAR_US)
    yield found.does(at_us, "keep", count=3)
    yield Step(at_us, found.name, "disconnect")
    yield found.does(at_us + random.choice((1_000, 500_000)), "finish", count=3, kept=10)


def _confirmed_late(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """FINs arrive after their messages have timed out, and the messages are delivered again, to be confirmed."""
    timeout_us = 1000 * plan.options["msg_timeout_ms"]
    due_us = found.at_us + timeout_us
    yield found.does(found.at_us + random.choice(NEAR_US[1:]), "keep", count=3)
    yield Step(found.at_us + timeout_us // 2, found.name, "pause")
    yield Step(due_us - 3 * timeout_us // 10, found.link, "stall", {"ways": "up", "for_us": 4 * timeout_us // 10})
    if random.random() < 0.7:  # a TOUCH is late, too, and messages are delivered again before the FINs arrive
        yield found.does(due_us - 2 * timeout_us // 10, "touch", kept=10)
        yield Step(due_us - timeout_us // 10, found.name, "resume")
    yield Step(due_us - timeout_us // 20, found.name, "confirm", {"count": 0})
    for _ in range(2):
        due_us += timeout_us // 3
        yield Step(due_us - timeout_us // 10, found.name, "resume")
        yield Step(due_us, found.name, "confirm", {"count": 100})


def _confirmed_and_cut(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """A connection is cut while FINs, or the answers that confirm them, are under way."""
    at_us = found.at_us + random.choice(NEAR_US[1:])
    yield Step(at_us, found.name, "confirm", {"count": 100})
    yield Step(at_us + random.choice((0, 500, 30_000)), found.link, "cut", {"ways": "both"})


def _burst(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """A producer that gathers messages publishes some at nearly the same time."""
    for number in range(4 if "linger_ms" in plan.players[found.producer] else 0):
        yield found.publishes(found.at_us + number, BURST_ID + number, size=random.choice((0, 300)))


def _emptied(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """A channel with deferred messages is emptied, and gets others."""
    count = random.choice((1, 3))
    for number in range(count):
        yield found.publishes(found.at_us, EMPTIED_ID + number, delay_ms=10_000)
    at_us = found.at_us + random.choice(NEAR_US)
    yield Step(at_us, found.node, random.choice(("empty channel", "empty channel", "delete channel")), found.place)
    yield found.publishes(at_us + random.choice((0, 100_000)), EMPTIED_ID + count)


def _paused_twice(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """Messages wait in a topic that is paused twice, at first as many as it has room for in memory."""
    room = plan.nodes[found.node]["mem_queue_size"]
    at_us = found.at_us
    for number, count, delay_ms in ((0, room, None), (1, 1, 500)):
        yield Step(at_us, found.node, "pause topic", found.place)
        yield found.publishes(at_us + 1_000, WAITING_ID + number, count=min(max(count, 1), 10), delay_ms=delay_ms)
        at_us += random.choice((80_000, 200_000))
        yield Step(at_us, found.node, "unpause topic", found.place)
        at_us += random.choice((1_000, 100_000))


def _unread(random: Random, plan: Plan, found: Holding, names: Collection[str]) -> Iterator[Step]:
    """Messages cannot be read for a moment, while others of their channel are deferred for longer."""
    if not plan.nodes[found.node].get("disk_faults"):
        return
    at_us = found.at_us
    yield Step(at_us, found.node, "pause channel", found.place)
    for number, delay_ms in enumerate((None, None, None, random.choice((500, 2_500)))):
        yield found.publishes(at_us + 1_000, UNREAD_ID + number, delay_ms=delay_ms)
    at_us += 200_000
    yield Step(at_us, found.node, "fail disk", {"error": errno.EIO, "after": 0, "times": 100})
    yield Step(at_us, found.node, "unpause channel", found.place)
    yield Step(at_us + random.choice((50_000, 500_000)), found.node, "recover disk")


Draw = Callable[[Random, Plan, Holding, Collection[str]], Iterator[Step]]

SITUATIONS: Final[dict[str, tuple[frozenset[str], Draw]]] = {
    "lost": (frozenset(("faults",)), _lost),
    "ended late": (frozenset(("ephemeral", "delete")), _ended_late),
    "stalled": (frozenset(("stall",)), _stalled),
    "confirmed late": (frozenset(("stall",)), _confirmed_late),
    "confirmed and cut": (frozenset(("cut",)), _confirmed_and_cut),
    "touched": (frozenset(("touches",)), _touched),
    "tested": (frozenset(("requeues",)), _tested),
    "burst": (frozenset(("batches",)), _burst),
    "left": (frozenset(("two nodes",)), _left),
    "emptied": (frozenset(("deferred", "delete")), _emptied),
    "unread": (frozenset(("deferred", "disk faults")), _unread),
    "paused twice": (frozenset(("deferred", "admin")), _paused_twice),
}
"""By its name: the features and faults that it needs, or any ``faults``, and what draws its steps."""

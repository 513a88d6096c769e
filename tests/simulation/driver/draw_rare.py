"""Draws what a part of the driver worlds has beside ``draw.py``: dead letters, pipelines, and lists that change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final

import attrs

from tests.simulation.driver import statsd
from tests.simulation.driver.relisting import LIFETIME_NS
from tests.simulation.plan import Step

FEATURES: Final = ("dead letters", "last attempts", "no answers", "pipeline", "relisting", "lanes")
SHARES: Final = {"dead letters": 0.35, "last attempts": 0.5, "pipeline": 0.25, "relisting": 0.9}
"""The shares of the worlds with a feature that have it, for features that cost time."""
CLOSE_US: Final = 7_000_000
"""More than the time in which a producer closes."""
NEAR: Final = frozenset(
    {
        *("stop", "kill", "power cut", "cut", "leave", "cancel", "disconnect", "connect", "pause", "max in flight"),
        *("empty channel", "empty topic", "delete channel", "delete topic"),
    }
)
HOPS_US: Final[tuple[list[int], ...]] = ([], [200], [1_000], [200, 200], [200, 1_000])
"""After these times bytes arrive that were sent at the time of a step; each is added to the time of the one before."""
ANSWERING: Final = frozenset(("iterate", "batches"))
"""Modes in which the program answers itself."""


def consumer_options(
    random: Random, features: set[str], player: dict[str, Any], topic: str
) -> tuple[dict[str, Any], list[str]]:
    """Return more options of a consumer, and more fates of its messages; dead letters are published to ``topic``."""
    if player["mode"] in ANSWERING:
        return {}, ["keep"] * (random.choice((1, 3)) if "no answers" in features else 0)
    options: dict[str, Any] = {}
    if "last attempts" in features:
        options["max_attempts"] = random.choice((1, 2, 3, 5))
    if "dead letters" in features and random.random() < 0.7:
        options["max_attempts"] = random.choice((1, 2, 3, 5))
        options["dead_letters"] = {
            "topic": topic,
            "envelope": "large" not in features and random.random() < 0.5,
            "publish_timeout": random.choice((0.05, 1.0)),
            "connect_timeout": random.choice((0.05, 0.3)),
            "publish_attempts": random.choice((1, 3)),
            "heartbeat_interval": 1.0,
            "read_timeout": 2.0,
            "reconnect_delay_max": 0.5,
        }
    fates = ["raise"] * (random.choice((1, 2)) if options else 0)
    if "lanes" in features and player["mode"] == "run" and random.random() < 0.5:  # messages wait behind slow handlers
        options |= {"run": {"concurrency": random.choice((1, 2)), "lanes": 3}, "max_in_flight": 20, "msg_timeout": 1.0}
        fates += ["slow"] * 8
    return options, fates


def reports(random: Random) -> dict[str, Any]:
    """Return the options of a broker that reports to statsd, or none."""
    return {**statsd.OPTIONS, "statsd_interval_ns": random.choice((3, 15)) * 10**8} if random.random() < 0.3 else {}


def rare_options(random: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return more options of a consumer, each of which is rare."""
    mode, rare = options["mode"], dict[str, Any]()
    if mode == "batches" and random.random() < 0.5:
        rare |= {"confirms": True, "fates": [*options["fates"], "slow", "slow"]}
    rare["giving_up"] = random.choice(("async", "raise", "plain", "slow"))
    if random.random() < 0.1:
        rare["hook_fails"] = True
    if random.random() < 0.3:
        rare["end_on_permanent_error"] = True
    if mode == "threads" and random.random() < 0.5:
        rare["thread_us"] = random.choice((300_000, 5_000_000))
    run = dict(options.get("run", {}))
    if "lanes" in run and random.random() < 0.3:
        run["key_fails"] = True
    if mode == "plain":
        run |= {name: True for name in ("auto_touch", "cancel_at_timeout") if random.random() < 0.3}
    if run:
        rare["run"] = run
    if "auto_touch" in run and random.random() < 0.5:  # a message is touched while it is given up, too
        rare |= {"giving_up": random.choice(("slow", "slow raise")), "max_attempts": 2, "msg_timeout": 1.0}
        rare["fates"] = [*options["fates"], "raise", "raise"]
    if "lookupds" in options and random.random() < 0.3:  # longer than the gap of requests that are made earlier
        rare["lookupd_poll_interval"] = 3.0
    return rare


def apart(random: Random, player: dict[str, Any]) -> dict[str, Any]:
    """Return the option of a consumer whose handlers run in a task that outlives its block."""
    has_tasks = player["mode"] not in ANSWERING and player["mode"] != "threads"
    return {"apart": True} if has_tasks and random.random() < 0.4 else {}


def pipelines(random: Random, name: str, duration_us: int) -> Iterator[Step]:
    """Yield the steps of a client that sends many commands at once."""
    for _ in range(random.choice((1, 2))):
        values = {
            "which": random.randrange(2),
            "count": random.choice((5, 100, 200)),
            "publish_every": random.choice((0, 1, 10)),
            "after_us": random.choice((0, 3_000, 300_000)),
            "ends": random.random() < 0.3,
        }
        if values["publish_every"] == 1:
            values["count"] = 20
        yield Step(random.randint(1, duration_us), name, "pipeline", values)


def refused_batch(
    random: Random, name: str, nodes: list[str], topics: Iterable[str], duration_us: int
) -> Iterator[Step]:
    """Yield publishes that a producer sends together, one of them too large, and its end."""
    at_us, topic, large = random.randint(1, duration_us), random.choice(list(topics)), random.randrange(4)
    for number in range(4):
        values = {"how": "publish nowait", "topic": topic}
        yield Step(at_us, name, "publish", values | ({"size": 6_000} if number == large else {}))
    if random.random() < 0.5:  # these linger until the others have their answer
        for later_us in (100, 300):
            yield Step(at_us + later_us, name, "publish", {"how": "publish nowait", "topic": topic})
    elif random.random() < 0.8:
        yield Step(at_us + random.choice((0, 1_000, 10_000, 100_000)), name, "leave")
        if random.random() < 0.4:  # nor can the others be sent again before the end
            for node in nodes:
                yield Step(at_us, node, "refuse", {"for_us": CLOSE_US})
                yield Step(at_us + CLOSE_US, node, "stats")


def lingering(random: Random, of_bytes: Random) -> dict[str, Any]:
    """Return the options of a producer whose messages linger; in some plans batches are full by their bytes."""
    options = {"linger": random.choice((0.01, 0.3)), "linger_max_messages": random.choice((2, 5, 500))}
    return options | ({"linger_max_bytes": 1024, "linger_max_messages": 500} if of_bytes.random() < 0.3 else {})


def full_batches(random: Random, name: str, topics: Iterable[str], duration_us: int) -> Iterator[Step]:
    """Yield publishes that fill batches by their bytes, and in some plans the end of the producer."""
    at_us, topic = random.randint(1, duration_us), random.choice(list(topics))
    for number in range(random.choice((5, 9))):
        values = {"how": random.choice(("publish", "publish nowait")), "topic": topic, "size": 300}
        yield Step(at_us + number * random.choice((0, 100)), name, "publish", values)
    if random.random() < 0.3:
        yield Step(at_us + random.choice((0, 300, 1_000)), name, "leave")


def refused_publishes(
    random: Random, name: str, nodes: list[str], topics: Iterable[str], duration_us: int, *, may_cut: bool
) -> Iterator[Step]:
    """Yield publishes that no disk takes; the first attempt of some is sent to an nsqd that does not answer."""
    at_us = random.randint(1, duration_us)
    for node in nodes:
        yield Step(at_us, node, "fail disk", {"after": 0, "count": 1_000, "error": "EIO"})
        yield Step(at_us + 400_000, node, "recover disk")
    if may_cut and random.random() < 0.7:
        link = f"{name}/{random.choice(nodes)}"
        yield Step(at_us, link, "stall", {"for_us": 300_000})
        yield Step(at_us + 100_000, link, "cut")
    for later_us in range(1_000, 5_000, 1_000):
        yield Step(at_us + later_us, name, "publish", {"how": "publish", "topic": random.choice(list(topics))})


def partly_taken(random: Random, nodes: list[str], topics: Iterable[str], duration_us: int) -> Iterator[Step]:
    """Yield a large publish of which an nsqd takes a part, and nothing after that, though it sends heartbeats."""
    at_us = random.randint(1, duration_us)
    for node in nodes:
        link = f"producer-1/{node}"
        yield Step(at_us, link, "slow", {"size": 7, "pause_us": 20_000})
        yield Step(at_us + 700_000, link, "half-open", {"sender": "player", "both": False})
    values = {"how": "publish nowait", "topic": random.choice(list(topics)), "size": 6_000}
    yield Step(at_us + 1, "producer-1", "publish", values)


def stopped_batch(random: Random, nodes: list[str], topics: Iterable[str], *, over_http: bool) -> Iterator[Step]:
    """Yield a publish of several messages, and a stop while its parts are put: early, as faults end connections."""
    at_us, node = random.randint(5_000, 20_000), random.choice(nodes)
    who, how = ("http-1", "multi") if over_http else ("producer-1", "multi nowait")
    yield Step(at_us, node, "stop", {"in_batch": random.randint(1, 4)})
    yield Step(at_us, who, "publish", {"how": how, "topic": random.choice(list(topics)), "count": 12})
    yield Step(at_us + 50_000, node, "start")


def near_publishes(random: Random, steps: list[Step]) -> list[Step]:
    """Return the steps, some of which come while the bytes of a publish are processed: after some turns of the loop."""
    publishes = [step.at_us for step in steps if step.verb == "publish"]
    for number, step in enumerate(steps):
        if publishes and step.verb in NEAR and random.random() < 0.15:
            near = {"hops_us": random.choice(HOPS_US), "turns": random.randrange(30)}
            steps[number] = attrs.evolve(step, at_us=random.choice(publishes), values=step.values | near)
    return steps


def unanswered(random: Random, who: Iterable[str], duration_us: int) -> Iterator[Step]:
    """Yield the steps of hosts that do not answer a connection that is begun; those of a player are cut first."""
    for each in who:
        if random.random() < 0.4:
            for_us = random.choice((10_000, 300_000, 3_000_000))
            yield Step(random.randint(1, duration_us), each, "unanswered", {"for_us": for_us})


def slow_lists(random: Random, players: dict[str, dict[str, Any]], duration_us: int) -> Iterator[Step]:
    """Yield the steps with which nsqlookupds need long to answer some consumers: an nsqd can be lost meanwhile."""
    for name, player in players.items():
        for lookupd in player.get("lookupds", ()):
            if random.random() < 0.3:
                values = {"size": random.choice((10, 30)), "pause_us": 10_000}
                yield Step(random.randint(1, duration_us), f"{name}/{lookupd}", "slow", values)


def relisting(
    random: Random, lookupds: list[str], nodes: list[str], duration_us: int
) -> tuple[dict[str, Any], dict[str, Any], list[Step]]:
    """Return the value of ``relisting`` in a plan, the options of the nsqlookupds, and the steps that hide brokers."""
    hidden = dict.fromkeys(lookupds, nodes)
    if random.random() < 0.3:
        hidden = {lookupd: [node for node in nodes if random.random() < 0.5] for lookupd in lookupds}
    cut = random.choice(("hidden", "listed again", "unreachable", "no nsqlookupds"))
    phase = {"hidden": hidden, "cut": cut, "leaves": random.random() < 0.5}
    if cut in {"hidden", "no nsqlookupds"}:  # until the end of the world
        return phase, {}, []
    steps = []
    if random.random() < 0.5:
        at_us = random.randint(1, duration_us)
        steps = [Step(at_us, lookupd, "tombstone topic", {"nodes": nodes}) for lookupd in lookupds]
    return phase, {"tombstone_lifetime_ns": LIFETIME_NS}, steps

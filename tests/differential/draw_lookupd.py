"""Draws plans for nsqlookupd: commands of several nsqds, and requests to its HTTP server."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from tests.differential.draw import framed, sized
from tests.differential.draw_http import quoted
from tests.differential.plan import Plan, Step
from tests.differential.words import BAD_NAMES

CONNECTIONS: Final = "abc"
STEPS_MAX: Final = 40

_OPTIONS: Final[tuple[dict[str, str], ...]] = ({}, {"tombstone-lifetime": "1h", "inactive-producer-timeout": "2h"})
_NODE: Final[dict[str, Any]] = {"hostname": "host", "tcp_port": 4150, "version": "1.3.0"}
_BAD_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "broadcast_address": ("", None, 5, "é", "a b"),
    "tcp_port": (0, -1, "4150", 4150.5, None, 99999),
    "http_port": (0, "x", None, 2**40),
    "version": ("", None, 1),
    "hostname": ("", None),
    "topology_zone": ("z",),
    "address": ("old",),
}
_TOPICS: Final = ("<t0>", "<t1>", "<t2>#ephemeral")
_CHANNELS: Final = ("c0", "c1", "c2#ephemeral")


def draw_lookupd(seed: int) -> Plan:
    """Return the plan for nsqlookupd with this number."""
    random = Random(f"lookupd/{seed}")
    steps: list[Step] = []
    opened: set[str] = set()
    for _ in range(random.randint(3, STEPS_MAX)):
        if random.random() < 0.45:
            steps.append(Step("http", _request(random)))
            continue
        name = random.choice(CONNECTIONS)
        if name not in opened:
            opened.add(name)
            steps += _beginning(random, name)
        elif random.random() < 0.05:
            opened.remove(name)
            steps += [Step("close", {"on": name}), Step("settle")]
        else:
            data, ends = _command(random, name)
            values: dict[str, Any] = {"on": name, "data": data, "answers": 1}
            if ends:
                values["ends"] = True
            steps.append(Step("send", values))
            if ends or random.random() < 0.02:
                opened.remove(name)
    return Plan("nsqlookupd", dict(random.choice(_OPTIONS)), tuple(steps))


def _beginning(random: Random, name: str) -> list[Step]:
    if random.random() < 0.03:
        return [Step("connect", {"on": name, "magic": random.choice(("  V2", "GET ", "", "\n\n\n\n"))})]
    steps = [Step("connect", {"on": name})]
    if random.random() < 0.9:
        steps.append(Step("send", {"on": name, "data": _identify(random, name), "answers": 1}))
    return steps


def _identify(random: Random, name: str) -> str:
    document = _NODE | {"broadcast_address": f"node-{name}", "http_port": 4151 + CONNECTIONS.index(name)}
    if random.random() < 0.15:
        key = random.choice(list(_BAD_VALUES))
        document[key] = random.choice(_BAD_VALUES[key])
    if random.random() < 0.05:
        document.pop(random.choice(list(document)))
    return "IDENTIFY\n" + framed(json.dumps(document, separators=(",", ":")))


def _command(random: Random, name: str) -> tuple[str, bool]:
    topic, channel, choice = random.choice(_TOPICS), random.choice(_CHANNELS), random.random()
    if choice < 0.45:
        return random.choice((f"REGISTER {topic}\n", f"REGISTER {topic} {channel}\n")), False
    if choice < 0.75:
        return random.choice((f"UNREGISTER {topic}\n", f"UNREGISTER {topic} {channel}\n")), False
    if choice < 0.85:
        return "PING\n", False
    if choice < 0.88:
        return _identify(random, name), False
    bad = random.choice(BAD_NAMES)
    complete = (
        *("REGISTER\n", "UNREGISTER\n", f"REGISTER {bad}\n", f"UNREGISTER {bad}\n", f"REGISTER {topic} {bad}\n"),
        *(f"UNREGISTER {topic} {bad}\n", f"REGISTER {topic} {channel} more\n", "PING more\n", "ping\n", "\n", "NOP\n"),
        *(f"REGISTER  {topic}\n", f"REGISTER {topic}\r\n", "IDENTIFY\n" + sized(0), "IDENTIFY\n" + framed("{")),
        *("IDENTIFY\n" + framed("[]"), "IDENTIFY\n" + framed("null"), "IDENTIFY\n" + framed("{}"), "\xff\n"),
    )
    partial = ("PING", "", "REGISTER", f"REGISTER {topic}", "IDENTIFY\n", "IDENTIFY\n\0", f"IDENTIFY\n{sized(9)}abc")
    return (random.choice(partial), True) if random.random() < 0.2 else (random.choice(complete), False)


def _request(random: Random) -> dict[str, Any]:
    topic, channel, choice = quoted(random.choice(_TOPICS)), quoted(random.choice(_CHANNELS)), random.random()
    bad = quoted(random.choice(BAD_NAMES))
    if choice < 0.5:
        paths = ("/lookup", "/channels", "/topics", "/nodes", "/debug", "/ping", "/info")
        query = random.choice(
            (f"?topic={topic}",) * 5 + ("", f"?topic={bad}", "?topic=unknown", "?topic=*", "?topic=%zz")
        )
        return {"method": "GET", "path": random.choice(paths) + query}
    if choice < 0.85:
        node = random.choice(("node-a:4151", "node-b:4152", "node-c:4153", "node-a:1", "x", ""))
        path = random.choice(
            (
                *(f"/topic/create?topic={topic}", f"/topic/delete?topic={topic}"),
                *(
                    f"/channel/create?topic={topic}&channel={channel}",
                    f"/channel/delete?topic={topic}&channel={channel}",
                ),
                *(f"/topic/tombstone?topic={topic}&node={node}",) * 2,
            )
        )
        return {"method": "POST", "path": path, "body": ""}
    kind = random.choice(
        ("topic/create", "topic/delete", "topic/tombstone", "channel/create", "channel/delete", "nope")
    )
    query = random.choice(
        ("", f"?topic={bad}", f"?topic={topic}", f"?topic={topic}&channel={bad}", f"?channel={channel}", "?%")
    )
    method = random.choice(("POST", "POST", "GET", "PUT", "HEAD", "DELETE"))
    return {"method": method, "path": f"/{kind}{query}"} | ({"body": ""} if method in {"POST", "PUT"} else {})

"""nsqlookupds that answer what the test says, without sockets: an ``http_request`` for whatever asks them.

The rule it guards: they behave, well or badly, until the test changes them. Whoever has no entry refuses connections.
A test waits for the question it wants to see (``asked``) or the change (``Changes.wait``), never for the time.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs, urlsplit

import anyio
import attrs
from anyio.lowlevel import checkpoint

Behaviour = Callable[[str], "tuple[int, bytes] | Awaitable[tuple[int, bytes]]"]

WAIT = 15
"""Seconds after which what is waited for will not come any more."""


def entry(address: str, **fields: object) -> dict[str, object]:
    """Return what an nsqlookupd says of the nsqd at an address."""
    host, _, port = address.rpartition(":")
    return {"broadcast_address": host, "tcp_port": int(port), "http_port": 4151, "version": "1.3.0", **fields}


def lists(*addresses: str, enveloped: bool = False) -> Behaviour:
    """Answer every question with these nsqds."""
    document: dict[str, object] = {"channels": [], "producers": [entry(address) for address in addresses]}
    if enveloped:
        document = {"status_code": 200, "status_txt": "OK", "data": document}
    return says(document)


def says(document: object) -> Behaviour:
    """Answer every question with this document."""
    return lambda path: (200, json.dumps(document).encode())


def refuses(status: int, body: bytes) -> Behaviour:
    """Answer every question with this refusal."""
    return lambda path: (status, body)


NOT_FOUND = refuses(404, b'{"message":"TOPIC_NOT_FOUND"}')


def hangs(path: str) -> Awaitable[tuple[int, bytes]]:
    """Never answer."""

    async def wait() -> tuple[int, bytes]:
        await anyio.sleep_forever()
        raise AssertionError

    return wait()


BAD: Mapping[str, Behaviour] = {
    "500": refuses(500, b'{"message":"INTERNAL_ERROR"}'),
    "404 of another server": refuses(404, b"<html>"),
    "redirect to nowhere": refuses(302, b""),
    "garbage": lambda path: (200, b"\xff\x00\x13"),
    "no object": says([]),
    "no list": says({"channels": []}),
    "a list of nonsense": says({"producers": [{"broadcast_address": "x"}]}),
    "nothing": lambda path: (200, b""),
    "too much": lambda path: (200, b" " * (6 << 20)),
    "envelope of a refusal": says({"status_code": 500, "status_txt": "INVALID_REQUEST", "data": None}),
    "deep": lambda path: (200, b"[" * 100_000),
}


async def settle() -> None:
    """Return when all that can happen without sockets and without the time going on has happened.

    A question and its answer take a handful of turns of the event loop; these are many more.
    """
    for _ in range(50):
        await checkpoint()


@attrs.define
class Lookupds:
    """A network of nsqlookupds.

    Attributes:
        behaviours: how each behaves, by ``host:port``.
        questions: address and route of all that was asked, with the topic if there was one.
    """

    behaviours: dict[str, Behaviour] = attrs.field(factory=dict)
    questions: list[tuple[str, str]] = attrs.field(factory=list)
    _asked: anyio.Event = attrs.field(factory=anyio.Event)

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes]:
        parts = urlsplit(url)
        topic = "".join(parse_qs(parts.query).get("topic", []))
        self.questions.append((parts.netloc, parts.path + (f" {topic}" if topic else "")))
        self._asked.set()
        self._asked = anyio.Event()
        await checkpoint()
        if parts.netloc not in self.behaviours:
            raise ConnectionRefusedError(parts.netloc)
        answer = self.behaviours[parts.netloc](parts.path)
        return answer if isinstance(answer, tuple) else await answer

    def count(self, address: str) -> int:
        """Return how often one was asked."""
        return sum(asked == address for asked, _ in self.questions)

    async def asked(self, address: str, count: int) -> None:
        """Return when one was asked so often."""
        with anyio.fail_after(WAIT):
            while self.count(address) < count:
                await self._asked.wait()


@attrs.define
class Changes:
    """What ``on_change`` was told."""

    told: list[tuple[list[str], list[str]]] = attrs.field(factory=list)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    def __call__(self, came: list[str], gone: list[str]) -> None:
        self.told.append((came, gone))
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, count: int) -> tuple[list[str], list[str]]:
        """Return the change of this number, from 1, once it was told."""
        with anyio.fail_after(WAIT):
            while len(self.told) < count:
                await self._changed.wait()
        return self.told[count - 1]

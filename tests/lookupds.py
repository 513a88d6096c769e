"""Simulated nsqlookupds without sockets, as an ``http_request``.

Each has a behaviour, which the test can change; an address without one refuses connections. A test waits for a request
(``asked``) or for a change (``Changes.wait``), never for time to pass.
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
"""Seconds after which a test fails."""


def entry(address: str, **fields: object) -> dict[str, object]:
    """Return nsqlookupd's entry for the nsqd at an address."""
    host, _, port = address.rpartition(":")
    return {"broadcast_address": host, "tcp_port": int(port), "http_port": 4151, "version": "1.3.0", **fields}


def lists(*addresses: str, enveloped: bool = False) -> Behaviour:
    """Answer every request with these nsqds."""
    document: dict[str, object] = {"channels": [], "producers": [entry(address) for address in addresses]}
    if enveloped:
        document = {"status_code": 200, "status_txt": "OK", "data": document}
    return says(document)


def says(document: object) -> Behaviour:
    """Answer every request with this document."""
    return lambda path: (200, json.dumps(document).encode())


def refuses(status: int, body: bytes) -> Behaviour:
    """Answer every request with this status and body."""
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
    """Run the event loop until no task has anything to do without sockets or time.

    A request and its response take a few turns of the event loop, far fewer than these.
    """
    for _ in range(50):
        await checkpoint()


@attrs.define
class Lookupds:
    """A network of nsqlookupds.

    Attributes:
        behaviours: the behaviour of each, by ``host:port``.
        requests: the address of each request, and its route, with the topic if there is one.
    """

    behaviours: dict[str, Behaviour] = attrs.field(factory=dict)
    requests: list[tuple[str, str]] = attrs.field(factory=list)
    _asked: anyio.Event = attrs.field(factory=anyio.Event)

    async def __call__(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(url)
        topic = "".join(parse_qs(parts.query).get("topic", []))
        self.requests.append((parts.netloc, parts.path + (f" {topic}" if topic else "")))
        self._asked.set()
        self._asked = anyio.Event()
        await checkpoint()
        if parts.netloc not in self.behaviours:
            raise ConnectionRefusedError(parts.netloc)
        answer = self.behaviours[parts.netloc](parts.path)
        return answer if isinstance(answer, tuple) else await answer

    def count(self, address: str) -> int:
        """Return the number of requests to one nsqlookupd."""
        return sum(asked == address for asked, _ in self.requests)

    async def asked(self, address: str, count: int) -> None:
        """Return after this number of requests to one nsqlookupd."""
        with anyio.fail_after(WAIT):
            while self.count(address) < count:
                await self._asked.wait()


@attrs.define
class Changes:
    """An ``on_change`` that records its calls."""

    calls: list[tuple[list[str], list[str]]] = attrs.field(factory=list)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    def __call__(self, came: list[str], gone: list[str]) -> None:
        self.calls.append((came, gone))
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, count: int) -> tuple[list[str], list[str]]:
        """Return the change with this number, from 1, once it has occurred."""
        with anyio.fail_after(WAIT):
            while len(self.calls) < count:
                await self._changed.wait()
        return self.calls[count - 1]

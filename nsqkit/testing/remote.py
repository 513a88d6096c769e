"""The nsqd of a test server at an address: it runs before the tests and after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqkit.errors import OptionError
from nsqkit.testing.external import ExternalNsqd
from nsqkit.testing.link.items import Direction
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.link.recording import Record
from nsqkit.testing.link.rules import topic_of
from nsqkit.transport.address import PORT_MAX, join_address, split_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.testing.link.items import Connection, Item
    from nsqkit.testing.ports import KeptPort

ANSWER_LIMIT: Final = 5.0
"""Real seconds in which it has to answer."""


class RemoteNsqd(ExternalNsqd):
    """A backend (``nsqkit.testing.backend.Backend``): a running nsqd.

    A test server starts and stops only the port in front of it. Instead of losing its messages, the nsqd gets rid of
    the topics that have appeared since the first start and that clients of this server have named; no other topic is
    ever deleted.

    Args:
        address: ``host:port`` of TCP, with HTTP at the next port, or ``host:port,host:port`` of TCP and of HTTP.
        named_topics: returns the topics that clients of this server have named.
    """

    def __init__(self, address: str, named_topics: Callable[[], set[str]]) -> None:
        super().__init__(address)
        self.tcp_address, self.http_address = _split(address)
        self._named_topics = named_topics
        self._found: set[str] | None = None

    async def start(self, tcp_address: str, http_port: KeptPort, *, keep_data: bool) -> None:
        """Return when it answers."""
        await self.wait_answers(ANSWER_LIMIT, lambda: None)
        if self._found is None:
            self._found = await self.topic_names()
        if not keep_data:
            await self.delete_created()

    async def stop(self, *, keep_data: bool) -> None:
        """Leave it as it was found, unless its data are kept for another start."""
        if not keep_data:
            await self.delete_created()

    async def kill(self) -> None:
        """Leave it as it was found."""
        await self.delete_created()

    async def reset(self) -> None:
        """Delete the topics that clients of this server have created."""
        await self.delete_created()

    async def delete_created(self) -> None:
        """Delete the topics that clients of this server have created."""
        named = self._named_topics()
        if self._found is not None and named:
            await self.delete_topics((await self.topic_names() & named) - self._found)


class NamingJournal(Journal):
    """A journal that notes the topics in the clients' commands, also of those that it does not keep.

    Args:
        topics: where to.
        enabled: as for ``Journal``.
    """

    def __init__(self, topics: set[str], *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._topics = topics

    def record_bytes(self, at_ns: int, connection: Connection, direction: Direction, data: bytes | list[Item]) -> None:
        """Note the topics, and keep the items."""
        if direction is Direction.TO_BROKER:
            items = Record(at_ns, connection, direction, data).items
            self._topics.update(filter(None, [topic_of(item, connection) for item in items]))
        super().record_bytes(at_ns, connection, direction, data)


def _split(address: str) -> tuple[str, str]:
    tcp, comma, http = address.partition(",")
    host, port = split_address(tcp)
    if comma:
        split_address(http)
        return tcp, http
    if not 0 < port < PORT_MAX:
        raise OptionError(f"backend is {address!r}; allowed is host:port with a port of 1 to {PORT_MAX - 1}")
    return tcp, join_address(host, port + 1)

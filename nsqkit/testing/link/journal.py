"""The journal: every command and frame that passed the links of a server, with time and client."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from nsqkit.testing.link.items import Connection, Direction, Item

RECORDS_MAX: Final = 10_000
"""Reads that a journal keeps; older ones are dropped."""


@attrs.frozen
class Record:
    """The items of one read."""

    at_ns: int
    connection: Connection
    direction: Direction
    items: list[Item]


class Journal:
    """Keeps the last items of all links of a server."""

    def __init__(self) -> None:
        self.records: deque[Record] = deque(maxlen=RECORDS_MAX)

    def record(self, at_ns: int, connection: Connection, direction: Direction, items: list[Item]) -> None:
        """Keep the items of one read."""
        self.records.append(Record(at_ns, connection, direction, items))

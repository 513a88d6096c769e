"""Records of a journal, and the file that keeps them: lines of JSON, of which the first has the version.

    {"format": "nsqkit journal", "version": 1, "start_ns": …, "dropped": …}
    {"connection": 0, "address": …, "client_id": …, "topic": …, "channel": …}      before its first record
    {"at_ns": …, "connection": 0, "direction": "to_broker", "items": [[name, bytes in base64, fault], …]}

The bytes are complete, with the secrets of AUTH.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.testing.link.items import Connection, Direction, Item, Splitter
from nsqkit.wire.commands import MAGIC_V2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

FORMAT: Final = "nsqkit journal"
VERSION: Final = 1

RECORD_OVERHEAD: Final = 160
"""The bytes of memory for a record besides its items."""

ITEM_OVERHEAD: Final = 128
"""The bytes of memory for an item besides its data, where items are kept."""


@attrs.define(eq=False)
class Record:
    """The items of one read.

    They are kept as their joined bytes, and divided again when they are read: keeping the items themselves would cost
    a busy broker a fifth of its throughput. Items whose names depend on more than their bytes are kept as they are.
    """

    at_ns: int
    connection: Connection
    direction: Direction
    kept: bytes | list[Item]

    @property
    def items(self) -> list[Item]:
        """The items, in order."""
        if isinstance(self.kept, list):
            return self.kept
        if self.direction is Direction.TO_BROKER:
            return Splitter(self.direction).feed(MAGIC_V2 + self.kept)[1:]
        return Splitter(self.direction).feed(self.kept)

    @property
    def size(self) -> int:
        """The memory for it in bytes, in about."""
        if isinstance(self.kept, list):
            return RECORD_OVERHEAD + sum([len(item.data) + ITEM_OVERHEAD for item in self.kept])
        return RECORD_OVERHEAD + len(self.kept)


def pack(items: list[Item]) -> bytes | list[Item]:
    """Return what a record keeps of one or more items."""
    if items[0].name == "MAGIC":
        return items
    for item in items:
        if item.fault or item.name == "BYTES":
            return items
    return b"".join([item.data for item in items])


@attrs.frozen
class Recording:
    """The content of a file: the records, the time of the first one ever made, and the number that were dropped."""

    records: list[Record]
    start_ns: int
    dropped_count: int


def save_recording(recording: Recording, path: str | PathLike[str]) -> None:
    """Write a file; an existing one is replaced."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(document) + "\n" for document in _documents(recording))


def load_recording(path: str | PathLike[str]) -> Recording:
    """Read a file.

    Raises:
        OptionError: the file is not a recording, or one of another version; the text has the path and the line.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        head = _parse(path, 1, file.readline())
        if head.get("format") != FORMAT:
            raise OptionError(f"{path} is not a saved journal: line 1 must have the format {FORMAT!r}")
        if head.get("version") != VERSION:
            raise OptionError(f"{path} is a journal of version {head.get('version')}; this nsqkit reads {VERSION} only")
        connections: dict[int, Connection] = {}
        records = []
        for number, line in enumerate(file, 2):
            document = _parse(path, number, line)
            try:
                if "items" in document:
                    records.append(_record(document, connections))
                else:
                    key = document.pop("connection")
                    connections[key] = Connection(**document)
            except (LookupError, TypeError, ValueError) as error:
                raise OptionError(f"{path} is not a saved journal: line {number} is wrong ({error!r})") from error
        return Recording(records, int(head.get("start_ns", 0)), int(head.get("dropped", 0)))


def _documents(recording: Recording) -> Iterator[dict[str, Any]]:
    head = {"format": FORMAT, "version": VERSION}
    yield {**head, "start_ns": recording.start_ns, "dropped": recording.dropped_count}
    numbers: dict[int, int] = {}
    for record in recording.records:
        connection = record.connection
        if id(connection) not in numbers:
            numbers[id(connection)] = len(numbers)
            yield {
                "connection": numbers[id(connection)],
                "address": connection.address,
                "client_id": connection.client_id,
                "topic": connection.topic,
                "channel": connection.channel,
            }
        items = [[item.name, base64.b64encode(item.data).decode("ascii"), item.fault] for item in record.items]
        yield {
            "at_ns": record.at_ns,
            "connection": numbers[id(connection)],
            "direction": record.direction.value,
            "items": items,
        }


def _parse(path: str | PathLike[str], number: int, line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise OptionError(f"{path} is not a saved journal: line {number} is not a JSON object")
    return document


def _record(document: dict[str, Any], connections: dict[int, Connection]) -> Record:
    items = [Item(str(name), base64.b64decode(data), str(fault)) for name, data, fault in document["items"]]
    direction = Direction(document["direction"])
    return Record(int(document["at_ns"]), connections[document["connection"]], direction, pack(items))

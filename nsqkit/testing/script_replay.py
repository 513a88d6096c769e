"""The replay of a recorded journal: the steps of a script that expects the same commands and sends the same frames.

A journal of a real nsqd, saved by ``journal.save``, so becomes a test that needs no nsqd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqkit.errors import OptionError
from nsqkit.testing.link.entries import is_lost, read_entry
from nsqkit.testing.link.items import Direction
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.script import MATCHES, Expect, Send, check_steps

if TYPE_CHECKING:
    from os import PathLike

    from nsqkit.testing.link.items import Connection, Item
    from nsqkit.testing.script import Step

_LEFT_OUT: Final = frozenset(("MAGIC", "NOP", "HEARTBEAT"))
"""Heartbeats depend on the time, so they are neither expected nor sent."""

_NOT_COMPARED: Final = frozenset(("IDENTIFY", "AUTH"))
"""Commands whose fields depend on the machine and the user."""


def replay(recording: Journal | str | PathLike[str]) -> list[tuple[Step, ...]]:
    """Return the steps of each recorded connection, in the order in which they began, for ``ScriptedNsqd(*…)``.

    The client must send the recorded commands of each connection in their order, with the same topics, bodies, counts,
    delays and messages; of IDENTIFY and AUTH only the name counts. It gets the frames of the recorded client, with
    their message ids.

    Args:
        recording: a journal, or the path of a saved one.

    Raises:
        OptionError: the file is not a saved journal, or the journal cannot be replayed: it is empty, its oldest reads
            were dropped, or it has a connection with TLS or compression.
    """
    journal = recording if isinstance(recording, Journal) else Journal.load(recording)
    if journal.dropped_count:
        raise OptionError(f"the journal dropped its oldest {journal.dropped_count} reads, so it cannot be replayed")
    connections: dict[int, tuple[Connection, list[Step]]] = {}
    for record in journal.records:
        _, steps = connections.setdefault(id(record.connection), (record.connection, []))
        is_frame = record.direction is Direction.TO_CLIENT
        for item in record.items:
            if item.name not in _LEFT_OUT and not (is_frame and is_lost(item.name, item.fault)):
                steps.append(_step(item, record.connection, record.direction))
    scripts = [check_steps(steps) for _, steps in connections.values() if steps]
    if not scripts:
        raise OptionError("the journal has no command, so it cannot be replayed")
    return scripts


def _step(item: Item, connection: Connection, direction: Direction) -> Step:
    if direction is Direction.TO_CLIENT and item.name != "BYTES":
        return Send(item.data, f"{item.name} as recorded")
    if item.name not in MATCHES:
        raise OptionError(
            f"the connection {connection.address} cannot be replayed: it has {item.data[:20]!r}, which is no command "
            "or frame, or is one in a layer such as TLS"
        )
    entry = read_entry(item, 0, 0.0, connection, direction, {})
    keys = () if item.name in _NOT_COMPARED else MATCHES[item.name]
    if entry.message_id:
        keys = tuple(key for key in keys if key != "body")
    return Expect(item.name, {key: getattr(entry, key) for key in keys})

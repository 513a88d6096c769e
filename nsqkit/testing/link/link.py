"""A link: the connection between one client and one broker, with two ends, as a machine without I/O.

    client ◀──▶ client_end │ link │ broker_end ◀──▶ broker

Each end is a machine, driven by its own pump: bytes that one end receives are divided into items, recorded, changed by
the faults that apply, and left at the other end. A proxy joins the ends to sockets, and the simulation to machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqkit.testing.link.items import Connection, Direction, Splitter

if TYPE_CHECKING:
    from nsqkit.testing.link.journal import Journal

OUTBOX_SIZE_MAX: Final = 1 << 20
"""With so many unsent bytes in a direction, nothing is read from its sender."""

_HEARTBEATS: Final = {"HEARTBEAT", "NOP"}
_PERHAPS_HEARTBEATS: Final = {"HEARTBEAT", "BYTES"}


class Link:
    """One connection.

    Args:
        client: the address of the client, or another name for it.
        journal: where its items are recorded.

    Attributes:
        connection: the client, as its items describe it.
        client_end: the machine that faces the client.
        broker_end: the machine that faces the broker.
        traffic_count: reads in either direction that contained more than heartbeats and their answers.
        heartbeat_count: reads passed to the client with a heartbeat, or with bytes that may be one.
        owes_answer: the client has sent nothing since the last of these.
    """

    def __init__(self, client: str, journal: Journal) -> None:
        self.connection = Connection(client)
        self.broker_end = LinkEnd(self, Direction.TO_BROKER)
        self.client_end = LinkEnd(self, Direction.TO_CLIENT)
        self.traffic_count = 0
        self.heartbeat_count = 0
        self.owes_answer = False
        self._journal = journal
        self._splitters = {direction: Splitter(direction) for direction in Direction}

    def end_of(self, direction: Direction) -> LinkEnd:
        """Return the end at which the bytes of this direction leave the link."""
        return self.broker_end if direction is Direction.TO_BROKER else self.client_end

    def receive(self, direction: Direction, data: bytes, now_ns: int) -> None:
        """Process the bytes of one read from the sender of ``direction``."""
        items = self._splitters[direction].feed(data)
        if items:
            self._journal.record(now_ns, self.connection, direction, items)
            self._count({item.name for item in items}, direction)
            self.end_of(direction).send(b"".join([item.data for item in items]))

    def _count(self, names: set[str], direction: Direction) -> None:
        if names - _HEARTBEATS:
            self.traffic_count += 1
        if direction is Direction.TO_BROKER:
            self.owes_answer = False
        elif not names.isdisjoint(_PERHAPS_HEARTBEATS):
            self.heartbeat_count += 1
            self.owes_answer = True


class LinkEnd:
    """One end of a link, as a machine.

    Attributes:
        ended: the connection is to be closed after the bytes that wait are sent.
        has_events: too many bytes waited here and were taken, so that the other end can receive again.
    """

    has_input = False

    def __init__(self, link: Link, direction: Direction) -> None:
        self.ended = False
        self.has_events = False
        self._link = link
        self._direction = direction  # of the bytes that leave here
        self._output: list[bytes] = []
        self._size = 0

    def send(self, data: bytes) -> None:
        """Have the driver send bytes."""
        if data and not self.ended:
            self._output.append(data)
            self._size += len(data)

    def end(self) -> None:
        """Have the driver close the connection after the bytes that wait."""
        self.ended = True

    # ---- as a machine --------------------------------------------------------------------------------------------

    @property
    def outbox_full(self) -> bool:
        """True while the other end has too many bytes to send."""
        return self._link.end_of(self._direction.opposite).is_full

    @property
    def is_full(self) -> bool:
        """True while too many bytes wait here."""
        return self._size >= OUTBOX_SIZE_MAX

    @property
    def has_output(self) -> bool:
        """True while there are bytes to send, or the connection is to be closed."""
        return bool(self._output) or self.ended

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Pass the bytes of one read to the other end."""
        if not self.ended:
            self._link.receive(self._direction.opposite, data, now_ns)

    def process_input(self, now_ns: int) -> None:
        """Do nothing: no input is left."""

    def receive_eof(self, now_ns: int) -> None:
        """Close both ends, the other one after the bytes that it has."""
        self.end()
        self._link.end_of(self._direction.opposite).end()

    def events(self) -> tuple[()]:
        """Return nothing: ``has_events`` alone is the event."""
        self.has_events = False
        return ()

    def data_to_send(self) -> bytes:
        """Return the bytes to write and forget them."""
        data = b"".join(self._output)
        self.has_events = self.is_full
        self._output.clear()
        self._size = 0
        return data

"""The journal: every command and frame that passed the links of a server, with time and client.

A link records the items of a read by one call, which joins and keeps their bytes. Entries
(``nsqkit.testing.link.entries``) are made when the journal is read. It may be read from any thread while the server
runs. Requests by HTTP, and messages that a test puts into the broker itself, do not pass a link.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Self

from nsqkit.errors import OptionError
from nsqkit.testing.link.entries import lines, read_entry
from nsqkit.testing.link.items import COMMANDS, FRAMES, Direction
from nsqkit.testing.link.recording import Record, Recording, load_recording, pack, save_recording
from nsqkit.wire.messages import id_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from nsqkit.testing.link.entries import Entry
    from nsqkit.testing.link.items import Connection, Item

RECORDS_MAX: Final = 100_000
"""Reads that a journal keeps; the oldest are dropped beyond it. A test of a few seconds has far fewer."""

SIZE_MAX: Final = 64 << 20
"""Bytes of memory that a journal uses, in about; the oldest reads are dropped beyond it."""

NS_PER_S: Final = 1_000_000_000

_COMMANDS: Final = frozenset((*COMMANDS, "BYTES"))
_FRAMES: Final = frozenset((*FRAMES, "BYTES"))


class Journal:
    """Keeps the last commands and frames of all links of a server.

    Iteration yields ``Entry`` values in order; ``len`` is their number; ``str`` has a line for each.

    Args:
        enabled: False to record nothing.
        records_max: reads that are kept.
        size_max: bytes of memory for them, in about.
    """

    def __init__(self, *, enabled: bool = True, records_max: int = RECORDS_MAX, size_max: int = SIZE_MAX) -> None:
        for name, value in (("records_max", records_max), ("size_max", size_max)):
            if value < 1:
                raise OptionError(f"{name} must be at least 1, not {value}")
        self.enabled = enabled
        self._records_max = records_max
        self._size_max = size_max
        self._kept = _Kept()

    # ---- writing: in the thread of the server ------------------------------------------------------------------------

    def record(self, at_ns: int, connection: Connection, direction: Direction, items: list[Item]) -> None:
        """Keep the items of one read, one or more; the list must not be changed afterwards."""
        self.record_bytes(at_ns, connection, direction, pack(items))

    def record_bytes(self, at_ns: int, connection: Connection, direction: Direction, data: bytes | list[Item]) -> None:
        """Keep the items of one read, as their joined bytes where these suffice (``recording.pack``)."""
        if not self.enabled:
            return
        kept = self._kept
        if not kept.start_ns:
            kept.start_ns = at_ns
        record = Record(at_ns, connection, direction, data)
        kept.records.append(record)
        kept.size += record.size
        if kept.size > self._size_max or len(kept.records) > self._records_max:
            self._drop(kept)

    def clear(self) -> None:
        """Forget everything; times begin again with the next entry."""
        self._kept = _Kept()  # in one step, since the thread of the server may be recording

    def _drop(self, kept: _Kept) -> None:
        while len(kept.records) > 1 and (kept.size > self._size_max or len(kept.records) > self._records_max):
            kept.size -= kept.records.popleft().size
            kept.dropped_count += 1

    # ---- reading: in any thread --------------------------------------------------------------------------------------

    @property
    def dropped_count(self) -> int:
        """The number of the oldest reads that were dropped since the journal would have been too large."""
        return self._kept.dropped_count

    @property
    def records(self) -> list[Record]:
        """The reads that are kept, in order, with their items and bytes."""
        return list(self._kept.records.copy())

    def __len__(self) -> int:
        return sum(len(record.items) for record in self.records)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries(_COMMANDS | _FRAMES, None)

    def commands(
        self,
        name: str | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        client: str | None = None,
    ) -> list[Entry]:
        """Return the commands of the clients, in order.

        Args:
            name: such as ``"PUB"``; None for all.
            topic: of the command, or of the subscription of its connection; None for any.
            channel: as ``topic``.
            client: a client id or an address; None for any.

        Raises:
            OptionError: there is no command of this name, or a value is not a text.
        """
        entries = self._entries(_names(name, _COMMANDS, "command"), Direction.TO_BROKER)
        return _select(entries, topic, channel, client)

    def frames(
        self,
        name: str | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        client: str | None = None,
    ) -> list[Entry]:
        """Return the frames of the broker, in order; ``name`` is such as ``"MESSAGE"``, otherwise as ``commands``."""
        entries = self._entries(_names(name, _FRAMES, "frame"), Direction.TO_CLIENT)
        return _select(entries, topic, channel, client)

    def messages(self, topic: str | None = None, channel: str | None = None) -> list[Entry]:
        """Return the deliveries, in order; None for any topic or channel."""
        return self.frames("MESSAGE", topic=topic, channel=channel)

    def tail(self, count: int) -> str:
        """Return lines of text for the last ``count`` entries."""
        entries = list(self)
        return self._text(entries[-count:] if count else [])

    def __str__(self) -> str:
        return self._text(list(self))

    def _text(self, entries: Sequence[Entry]) -> str:
        dropped = self.dropped_count
        head = [f"(the oldest {dropped} reads were dropped: the journal was full)"] if dropped else []
        return "\n".join([*head, *lines(entries)])

    def _entries(self, names: frozenset[str], direction: Direction | None) -> Iterator[Entry]:
        kept = self._kept
        deliveries: dict[tuple[str, str, bytes], bytes] = {}
        for record in kept.records.copy():
            connection = record.connection
            seconds = (record.at_ns - kept.start_ns) / NS_PER_S
            is_wanted = direction is None or direction is record.direction
            for item in record.items:
                if item.name == "MESSAGE":
                    deliveries[connection.topic, connection.channel, id_of(item.data)] = item.data
                if is_wanted and item.name in names:
                    yield read_entry(item, record.at_ns, seconds, connection, record.direction, deliveries)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the journal to a file, with all bytes, also the secrets of AUTH; an existing file is replaced."""
        kept = self._kept
        save_recording(Recording(list(kept.records.copy()), kept.start_ns, kept.dropped_count), path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a journal that ``save`` has written.

        Raises:
            OptionError: the file is not a saved journal, or one of another version.
        """
        recording = load_recording(path)
        journal = cls()
        journal._kept = _Kept.of(recording)
        return journal


class _Kept:
    """The content of a journal."""

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.start_ns = 0
        self.size = 0
        self.dropped_count = 0

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """Return the content of a file."""
        kept = cls()
        kept.records.extend(recording.records)
        kept.start_ns = recording.start_ns
        kept.size = sum(record.size for record in recording.records)
        kept.dropped_count = recording.dropped_count
        return kept


def _names(name: str | None, known: frozenset[str], kind: str) -> frozenset[str]:
    if name is None:
        return known
    if name not in known:
        raise OptionError(f"there is no {kind} {name!r}; the {kind}s are {', '.join(sorted(known))}")
    return frozenset((name,))


def _select(entries: Iterator[Entry], topic: str | None, channel: str | None, client: str | None) -> list[Entry]:
    for kind, value in (("topic", topic), ("channel", channel), ("client", client)):
        if value is not None and not isinstance(value, str):
            raise OptionError(f"{kind} is {value!r}; allowed is None or a text")
    return [
        entry
        for entry in entries
        if topic in (None, entry.topic)
        and channel in (None, entry.channel)
        and client in (None, entry.client_id, entry.address)
    ]

"""The division of a partition's messages into chunks, and the decision when the partition stops.

A chunk is due when it has enough messages or bytes, when nsqd delivers nothing more until some are answered, or when
its first message has lingered long enough, whichever comes first. A pause between messages does not make it due: a
steady stream has none, and would always fill a chunk to its limit. A partition stops at its count, at its bytes, when
it is empty, or at its deadline, whichever comes first; with ``stops_after_linger`` also after a chunk that was due
because of ``linger_ns`` alone: it had all messages that waited, unless so many have arrived in that time that there is
a backlog.

        receive ─▶ pending ─▶ take: a chunk ─▶ (processed and finished) ─▶ stop_reason

If ``take`` returns no chunk, ``stop_reason`` returns whether to stop, and ``next_deadline`` when to call both again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

import attrs

from nsqkit.clock import NS_PER_S

BACKLOG_RATE: Final = 5_000
"""Messages a second from which a partition processes a backlog. An nsqd delivers a backlog several times as fast."""

BACKLOG_MIN: Final = 100
"""Messages in a chunk that are no sign of a backlog, however short the time to linger is."""


class StopReason(enum.Enum):
    """Why a partition takes no more messages."""

    COUNT = "count"
    BYTES = "bytes"
    LINGER = "linger"
    EMPTY = "empty"
    DEADLINE = "deadline"


class Delivery(Protocol):
    """The attributes of a message that a chunker reads."""

    @property
    def body(self) -> bytes: ...
    @property
    def is_answered(self) -> bool: ...


M = TypeVar("M", bound=Delivery)


@attrs.frozen(kw_only=True)
class Bounds:
    """The limits of one partition.

    Attributes:
        chunk_messages: messages that make a chunk due.
        chunk_bytes: bytes that make a chunk due.
        linger_ns: age of its first message at which a chunk is due.
        max_messages: messages to take; None for no limit.
        max_bytes: bytes of bodies after which no message is taken; None for no limit.
        empty_for_ns: time without messages after which the partition is empty; None for never.
        deadline_ns: time from the start after which only one more chunk is taken; None for no limit.
        stops_after_linger: whether the partition stops after a chunk that was due because of ``linger_ns`` alone,
            though messages could arrive for that time, and fewer than ``BACKLOG_RATE`` did.
    """

    chunk_messages: int
    chunk_bytes: int
    linger_ns: int
    max_messages: int | None = None
    max_bytes: int | None = None
    empty_for_ns: int | None = None
    deadline_ns: int | None = None
    stops_after_linger: bool = False


@attrs.define(eq=False)
class Chunker(Generic[M]):
    """The messages that a partition has received and not begun to process.

    Attributes:
        start_ns: the time at which the partition began.
        pending: the messages, oldest first.
        taken_count: messages taken so far.
        taken_bytes: bytes of their bodies.
    """

    bounds: Bounds
    start_ns: int
    pending: deque[M] = attrs.field(factory=deque, init=False)
    taken_count: int = attrs.field(default=0, init=False)
    taken_bytes: int = attrs.field(default=0, init=False)
    _pending_bytes: int = attrs.field(default=0, init=False)
    _chunk_begun_ns: int = attrs.field(default=0, init=False)
    _quiet_since_ns: int = attrs.field(init=False)
    _flows_since_ns: int = attrs.field(init=False)  # messages can arrive
    _last: StopReason | None = attrs.field(default=None, init=False)  # set once the last chunk is taken

    def __attrs_post_init__(self) -> None:
        self._quiet_since_ns = self._flows_since_ns = self.start_ns

    def receive(self, messages: Sequence[M], now_ns: int) -> int:
        """Add messages, and return the bytes of their bodies."""
        size = _size(messages)
        if not self.pending:
            self._chunk_begun_ns = now_ns
        self.pending.extend(messages)
        self._pending_bytes += size
        self._quiet_since_ns = now_ns
        return size

    def take(self, now_ns: int, *, is_starved: bool = False) -> list[M]:
        """Return a chunk if one is due, an empty list otherwise.

        Args:
            now_ns: the time.
            is_starved: whether some connection delivers nothing until messages are answered. If the messages of a topic
                are all in one of several nsqds, its share of ``max_in_flight`` may be less than a chunk.

        Messages that timed out or whose connection was lost are left out, since nsqd delivers them again.
        """
        if not self.pending or self._last is not None or not (is_starved or self._is_due(now_ns)):
            return []
        if self._is_late(now_ns):
            self._last = StopReason.DEADLINE
        elif self.bounds.stops_after_linger and not (is_starved or self._is_backlog) and self._has_lingered(now_ns):
            self._last = StopReason.LINGER
        chunk = self._pop()
        self.taken_count += len(chunk)
        self.taken_bytes += _size(chunk)
        self._chunk_begun_ns = now_ns
        return chunk

    def restart_quiet(self, now_ns: int) -> None:
        """Measure the time without messages from now on, after a time in which none could come.

        None could come while unanswered messages filled ``max_in_flight``, or while a connection was down.
        """
        self._quiet_since_ns = self._flows_since_ns = now_ns

    @property
    def is_last_taken(self) -> bool:
        """True if ``take`` will return no chunk any more."""
        return self._last is not None or self._reached is not None

    def stop_reason(self, now_ns: int) -> StopReason | None:
        """Return why the partition takes no more messages; None while it may."""
        bounds = self.bounds
        if (reached := self._reached) is not None:
            return reached
        if self._last is not None:
            return self._last
        if self._is_late(now_ns) and not self.pending:
            return StopReason.DEADLINE
        if (
            not self.pending
            and bounds.empty_for_ns is not None
            and now_ns >= self._quiet_since_ns + bounds.empty_for_ns
        ):
            return StopReason.EMPTY
        return None

    def next_deadline(self) -> int | None:
        """Return when a chunk is due or the partition stops if no message arrives; None for never."""
        bounds = self.bounds
        deadlines = []
        if bounds.deadline_ns is not None:
            deadlines.append(self.start_ns + bounds.deadline_ns)
        if self.pending:
            deadlines.append(self._chunk_begun_ns + bounds.linger_ns)
        elif bounds.empty_for_ns is not None:
            deadlines.append(self._quiet_since_ns + bounds.empty_for_ns)
        return min(deadlines, default=None)

    @property
    def _reached(self) -> StopReason | None:
        bounds = self.bounds
        if bounds.max_messages is not None and self.taken_count >= bounds.max_messages:
            return StopReason.COUNT
        if bounds.max_bytes is not None and self.taken_bytes >= bounds.max_bytes:
            return StopReason.BYTES
        return None

    @property
    def _count_max(self) -> int:
        """The messages that the next chunk may have."""
        bounds = self.bounds
        if bounds.max_messages is None:
            return bounds.chunk_messages
        return min(bounds.chunk_messages, bounds.max_messages - self.taken_count)

    @property
    def _bytes_max(self) -> int:
        """The bytes that end the next chunk."""
        bounds = self.bounds
        if bounds.max_bytes is None:
            return bounds.chunk_bytes
        return min(bounds.chunk_bytes, bounds.max_bytes - self.taken_bytes)

    def _pop(self) -> list[M]:
        pending = self.pending
        if len(pending) <= self._count_max and self._pending_bytes < self._bytes_max:  # mostly
            chunk = [message for message in pending if not message.is_answered]
            pending.clear()
            self._pending_bytes = 0
            return chunk
        chunk = []
        size, count_max, bytes_max = 0, self._count_max, self._bytes_max
        while pending and len(chunk) < count_max and size < bytes_max:
            message = pending.popleft()
            self._pending_bytes -= len(message.body)
            if not message.is_answered:
                chunk.append(message)
                size += len(message.body)
        return chunk

    @property
    def is_full(self) -> bool:
        """True if a chunk is due because of its messages or bytes."""
        return len(self.pending) >= self._count_max or self._pending_bytes >= self._bytes_max

    @property
    def _is_backlog(self) -> bool:
        """Whether messages arrive so fast that more of them wait."""
        count_min = max(BACKLOG_MIN, BACKLOG_RATE * self.bounds.linger_ns // NS_PER_S)
        return self.is_full or len(self.pending) >= count_min

    def _is_due(self, now_ns: int) -> bool:
        return self.is_full or now_ns >= self._chunk_begun_ns + self.bounds.linger_ns or self._is_late(now_ns)

    def _has_lingered(self, now_ns: int) -> bool:
        """Return whether messages could arrive for the time to linger; a chunk that was processed may prevent that."""
        return now_ns >= self._flows_since_ns + self.bounds.linger_ns

    def _is_late(self, now_ns: int) -> bool:
        return self.bounds.deadline_ns is not None and now_ns >= self.start_ns + self.bounds.deadline_ns


def _size(messages: Iterable[Delivery]) -> int:
    return sum(map(len, map(attrgetter("body"), messages)))

"""The division of a partition's messages into chunks, and the decision when the partition stops.

A chunk is due when it has enough messages or bytes, or when its first message has lingered long enough, whichever comes
first. A pause between messages does not make it due: a steady stream has none, and would always fill a chunk to its
limit. A partition stops at its count, when it is empty, or at its deadline, whichever comes first.

        receive ─▶ pending ─▶ take: a chunk ─▶ (processed and finished) ─▶ stop_reason

If ``take`` returns no chunk, ``stop_reason`` returns whether to stop, and ``next_deadline`` when to call both again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import attrs


class StopReason(enum.Enum):
    """Why a partition takes no more messages."""

    COUNT = "count"
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
        empty_for_ns: time without messages after which the partition is empty; None for never.
        deadline_ns: time from the start after which only one more chunk is taken; None for no limit.
    """

    chunk_messages: int
    chunk_bytes: int
    linger_ns: int
    max_messages: int | None = None
    empty_for_ns: int | None = None
    deadline_ns: int | None = None


@attrs.define(eq=False)
class Chunker(Generic[M]):
    """The messages that a partition has received and not begun to process.

    Attributes:
        start_ns: the time at which the partition began.
        pending: the messages, oldest first.
        taken_count: messages taken so far.
    """

    bounds: Bounds
    start_ns: int
    pending: deque[M] = attrs.field(factory=deque, init=False)
    taken_count: int = attrs.field(default=0, init=False)
    _pending_bytes: int = attrs.field(default=0, init=False)
    _chunk_begun_ns: int = attrs.field(default=0, init=False)
    _quiet_since_ns: int = attrs.field(init=False)
    _took_last: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._quiet_since_ns = self.start_ns

    def receive(self, messages: Iterable[M], now_ns: int) -> None:
        if not self.pending:
            self._chunk_begun_ns = now_ns
        for message in messages:
            self.pending.append(message)
            self._pending_bytes += len(message.body)
        self._quiet_since_ns = now_ns

    def take(self, now_ns: int) -> list[M]:
        """Return a chunk if one is due, an empty list otherwise.

        Messages that timed out or whose connection was lost are left out, since nsqd delivers them again.
        """
        if not self.pending or self._took_last or not self._is_due(now_ns):
            return []
        self._took_last = self._is_late(now_ns)
        chunk: list[M] = []
        size, count_max = 0, self._count_max
        while self.pending and len(chunk) < count_max and size < self.bounds.chunk_bytes:
            message = self.pending.popleft()
            self._pending_bytes -= len(message.body)
            if not message.is_answered:
                chunk.append(message)
                size += len(message.body)
        self.taken_count += len(chunk)
        self._chunk_begun_ns = now_ns
        return chunk

    def restart_quiet(self, now_ns: int) -> None:
        """Measure the time without messages from now on, after a time in which none could come.

        None could come while unanswered messages filled ``max_in_flight``, or while a connection was down.
        """
        self._quiet_since_ns = now_ns

    def stop_reason(self, now_ns: int) -> StopReason | None:
        """Return why the partition takes no more messages; None while it may."""
        bounds = self.bounds
        if bounds.max_messages is not None and self.taken_count >= bounds.max_messages:
            return StopReason.COUNT
        if self._is_late(now_ns) and (self._took_last or not self.pending):
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
    def _count_max(self) -> int:
        """The messages that the next chunk may have."""
        bounds = self.bounds
        if bounds.max_messages is None:
            return bounds.chunk_messages
        return min(bounds.chunk_messages, bounds.max_messages - self.taken_count)

    def _is_due(self, now_ns: int) -> bool:
        return (
            len(self.pending) >= self._count_max
            or self._pending_bytes >= self.bounds.chunk_bytes
            or now_ns >= self._chunk_begun_ns + self.bounds.linger_ns
            or self._is_late(now_ns)
        )

    def _is_late(self, now_ns: int) -> bool:
        return self.bounds.deadline_ns is not None and now_ns >= self.start_ns + self.bounds.deadline_ns

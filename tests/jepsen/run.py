"""The state that all parts of a run share: its history, its end, and the messages that are still missing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import anyio

from tests.jepsen.history import Event, Recorder

WATCH_S: Final = 0.1
LATE_S: Final = 0.3


class Run:
    """One run.

    Args:
        recorder: writes its history.
        channels: the channels in which each message has to be finished.

    Attributes:
        calm: the faults and the publishing are over.
        over: the run is.
        acknowledged: messages that are acknowledged and not finished in all channels.
        delivered: when the last message came.
    """

    def __init__(self, recorder: Recorder, channels: Sequence[str]) -> None:
        self.calm = anyio.Event()
        self.over = anyio.Event()
        self.acknowledged: set[str] = set()
        self.delivered = 0.0
        self._recorder = recorder
        self._channels = channels
        self._begin = time.monotonic()
        self._unfinished: dict[str, set[str]] = {}
        self._connections = 0

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def record(self, kind: str, **fields: Any) -> None:
        """Add an event to the history."""
        self._recorder.record(Event(kind, round(self.now, 4), **fields))

    def new_connection(self) -> int:
        """Return a number for a connection."""
        self._connections += 1
        return self._connections

    async def wait(self, seconds: float) -> None:
        """Return after some time, or when the faults are over."""
        with anyio.move_on_after(seconds):
            await self.calm.wait()

    async def pause(self, seconds: float) -> None:
        """Return after some time, or when the run is over."""
        with anyio.move_on_after(seconds):
            await self.over.wait()

    async def watch_time(self) -> None:
        """Record when this process could do nothing for a while: frames were then received late."""
        while not self.over.is_set():
            begin = self.now
            await self.pause(WATCH_S)
            late = self.now - begin - WATCH_S
            if late > LATE_S:
                self.record("late", count=round(late * 1000))

    def publishing(self, broker: int, body: str) -> None:
        """Record the beginning of a publish."""
        self._unfinished[body] = set(self._channels)
        self.record("invoke", broker=broker, body=body)

    def published(self, body: str, kind: str, text: str = "") -> None:
        """Record the end of a publish: ``ok``, ``fail`` or ``info``."""
        self.record(kind, body=body, text=text)
        if kind == "ok" and body in self._unfinished:
            self.acknowledged.add(body)
        else:
            self._unfinished.pop(body, None)
            self.acknowledged.discard(body)

    def delivering(self, connection: int, body: str, message_id: str, attempt: int) -> None:
        """Record a delivery."""
        self.record("deliver", connection=connection, body=body, id=message_id, attempt=attempt)
        self.delivered = self.now

    def finishing(self, connection: int, channel: str, body: str, message_id: str) -> None:
        """Record a FIN."""
        self.record("finish", connection=connection, id=message_id)
        unfinished = self._unfinished.get(body)
        if unfinished is not None:
            unfinished.discard(channel)
            if not unfinished:
                del self._unfinished[body]
                self.acknowledged.discard(body)

    def refused(self, connection: int, channel: str, body: str, message_id: str) -> None:
        """Record that a FIN was refused: the message will be delivered again."""
        self.record("refuse", connection=connection, id=message_id)
        self._unfinished.setdefault(body, set()).add(channel)
        self.acknowledged.add(body)

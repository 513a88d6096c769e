"""The handlers of one consumer that run at present: one ``Handling`` for each call of ``run``.

The rule it guards: no handler outlasts the consumer's stop by more than its time. Those that do are cancelled, and all
messages without an answer are given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqkit.consumer.core import ConsumerCore
    from nsqkit.consumer.handling import Handling
    from nsqkit.consumer.log import ConsumerLog


class ActiveHandlers:
    """What runs handlers for one consumer, from ``add`` to ``remove``.

    Args:
        core: the consumer.
        log: its log lines.
        follows_concurrency: whether max_in_flight is raised to what the handlers can take.

    Attributes:
        follows_concurrency: as above; False once the user has set max_in_flight.
        were_ended: True once the handlers were cancelled because their time was over.
    """

    def __init__(self, core: ConsumerCore, log: ConsumerLog, *, follows_concurrency: bool) -> None:
        self._core = core
        self._log = log
        self._message_counts: dict[Handling, int] = {}
        self._removed = anyio.Event()
        self.follows_concurrency = follows_concurrency
        self.were_ended = False

    async def serve(
        self, handling: Handling, message_count: int, work: Callable[[], Awaitable[None]], now_ns: int
    ) -> None:
        """Do the work of a ``run``; return when it is done or its handlers were cancelled by ``end``."""
        self.add(handling, message_count, now_ns)
        try:
            with anyio.CancelScope() as handling.scope:
                await work()
        finally:
            self.remove(handling)

    def add(self, handling: Handling, message_count: int, now_ns: int) -> None:
        """Add a handler that takes up to ``message_count`` messages at a time."""
        self._message_counts[handling] = message_count
        wanted, allowed = sum(self._message_counts.values()), self._core.flow.max_in_flight
        if self.follows_concurrency and wanted > allowed:
            self._core.set_max_in_flight(wanted, now_ns)
        elif 0 < allowed < wanted:
            self._log.few_in_flight(allowed, wanted)

    def remove(self, handling: Handling) -> None:
        """Remove a handler that has returned for the last time."""
        del self._message_counts[handling]
        handling.empty_keyed_queues()
        self._removed.set()

    def look(self) -> None:
        """Have each handler look for messages whose time is over, and end all once the time after the stop is over."""
        for handling in self._message_counts:
            handling.look()
        if self._core.is_over and not self.were_ended:
            self._end()

    def _end(self) -> None:
        """Cancel the handlers, and give back what is not answered."""
        self.were_ended = True
        in_flight = self._core.flow.statistics().in_flight
        if self._message_counts and in_flight:
            self._log.stop_timeout(in_flight)
        for handling in self._message_counts:
            handling.cancel()
        self._core.requeue_all()
        self._removed.set()

    async def wait_ended(self, seconds: float) -> None:
        """Return when all handlers have returned, or were cancelled and have not returned within ``seconds``."""
        while self._message_counts and not self.were_ended:
            await self._wait_removed()
        with anyio.move_on_after(seconds):
            while self._message_counts:
                await self._wait_removed()

    async def _wait_removed(self) -> None:
        self._removed = anyio.Event()
        await self._removed.wait()

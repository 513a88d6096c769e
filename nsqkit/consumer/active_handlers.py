"""The handlers of one consumer that run at present: one ``Handling`` for each call of ``run``.

After the consumer's stop, handlers may run until its time limit. Then they are cancelled, and all messages without an
answer are requeued.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from nsqkit.clock import move_on_after
from nsqkit.consumer.handler import check_handler
from nsqkit.consumer.handling import Handling
from nsqkit.loop_thread import CarriedExit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsqkit.consumer.handler_options import HandlerOptions
    from nsqkit.consumer.log import ConsumerLog
    from nsqkit.consumer.subscription import Subscription


class ActiveHandlers:
    """The handlers of one consumer.

    Attributes:
        follows_concurrency: as above; False once the user has set max_in_flight.
        were_ended: True once the handlers were cancelled because the time limit has passed.
    """

    def __init__(self, subscription: Subscription, log: ConsumerLog, *, follows_concurrency: bool) -> None:
        self._subscription = subscription
        self._core = subscription.core
        self._log = log
        self._message_counts: dict[Handling, int] = {}
        self._removed = anyio.Event()
        self.follows_concurrency = follows_concurrency
        self.were_ended = False

    def make(self, handler: Callable[[Any], object], options: HandlerOptions) -> Handling:
        """Return a ``Handling``, after checks.

        Raises:
            OptionError: the handler cannot be called with these options.
            Closed: the consumer is not entered.
        """
        check_handler(handler, can_await=not options.in_threads)
        return Handling(self._subscription, handler, options)

    @contextmanager
    def serving(self, handling: Handling, message_count: int) -> Iterator[None]:
        """Have the block, which calls handlers, cancelled with them; ``message_count`` is as for ``add``."""
        self.add(handling, message_count)
        try:
            with anyio.CancelScope() as handling.scope:
                yield
        except CarriedExit as carried:
            raise carried.error from None
        finally:
            self.remove(handling)

    def add(self, handling: Handling, message_count: int) -> None:
        """Add a handler that takes up to ``message_count`` messages at a time."""
        self._message_counts[handling] = message_count
        wanted, allowed = sum(self._message_counts.values()), self._core.flow.max_in_flight
        if self.follows_concurrency and wanted > allowed:
            self._core.set_max_in_flight(wanted, self._subscription.now_ns())
            self._subscription.after()
        elif 0 < allowed < wanted:
            self._log.few_in_flight(allowed, wanted)

    def remove(self, handling: Handling) -> None:
        """Remove a handler that is not called any more."""
        self._message_counts.pop(handling, None)
        handling.empty_keyed_queues()
        self._subscription.after()
        self._removed.set()

    def check(self) -> None:
        """Cancel handlers whose messages have timed out, where that is an option, and all after the time limit."""
        for handling in self._message_counts:
            handling.cancel_timed_out()
        if self._core.is_over and not self.were_ended:
            self._end()

    def _end(self) -> None:
        """Cancel the handlers, and requeue the messages without an answer."""
        self.were_ended = True
        in_flight = self._core.flow.in_flight
        if self._message_counts and in_flight:
            self._log.stop_timeout(in_flight)
        for handling in list(self._message_counts):
            handling.cancel()
            if handling.scope is None:  # a thread of the program calls it, for which nothing waits
                del self._message_counts[handling]
        self._core.requeue_all()
        self._removed.set()

    async def wait_ended(self, seconds: float) -> None:
        """Return when all handlers have returned, or ``seconds`` after they were cancelled."""
        while self._message_counts and not self.were_ended:
            await self._wait_removed()
        with move_on_after(self._subscription.check_entered(), seconds):
            while self._message_counts:
                await self._wait_removed()

    async def _wait_removed(self) -> None:
        self._removed = anyio.Event()
        await self._removed.wait()

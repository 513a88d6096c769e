"""What threads take from a consumer in the event-loop thread, and what they give back.

    event loop   inbox ─▶ give ──────┐             ┌──▶ FIN, once for many
    threads                          └─▶ taken ─▶ handled ─▶ finish

The rule it guards: a thread and the event loop meet once for many messages. A thread takes all that waits; what threads
have finished is collected, and the event loop, once it has been woken, looks again by itself for as long as there is
more. Nothing is lost on the way: what was taken for a thread that waits no more, or that nobody has begun with at the
end, is given back.

How to read it: what threads call, then what the event loop does for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from nsqkit.consumer.batches import Batch
from nsqkit.consumer.blocking_message import BlockingMessage
from nsqkit.consumer.core import take
from nsqkit.errors import Closed, NSQError
from nsqkit.loop_thread import OneShot
from nsqkit.loop_thread.loop_client import SIGNAL_WAIT_MAX

if TYPE_CHECKING:
    from nsqkit.consumer.batches import Batches
    from nsqkit.consumer.consumer import Consumer
    from nsqkit.consumer.message import Message
    from nsqkit.loop_thread import LoopClient

T = TypeVar("T")

FINISH_DELAY: Final = 0.001
"""Seconds for which a finished message may wait for others, unless the thread itself goes to wait."""


class Demand(OneShot["list[Message]"]):
    """A thread that waits for messages.

    Attributes:
        max_messages: how many it takes at most; None is no limit.
        given: what it was given.
    """

    __slots__ = ("given", "max_messages")

    def __init__(self, max_messages: int | None) -> None:
        super().__init__()
        self.max_messages = max_messages
        self.given: list[Message] = []

    def resolve(self, error: Exception | None, result: list[Message] | None = None) -> None:
        """Set the messages, or the error."""
        self.given = result or []
        super().resolve(error, result)


class ThreadReceiver:
    """The way from one consumer to its threads, and back.

    Args:
        loop_client: the consumer's, in the event-loop thread.
    """

    def __init__(self, loop_client: LoopClient[Consumer]) -> None:
        self._loop_client = loop_client
        self._consumer = loop_client.client
        self._waiting: deque[Demand] = deque()
        self._taken: deque[Message] = deque()
        self._finished: deque[Message] = deque()
        self._is_attentive = False
        self._consumer._core.queues.append(self._taken)
        loop_client.start(self._feed)

    # ---- for threads ---------------------------------------------------------------------------------------------

    def next(self, timeout: float | None = None) -> BlockingMessage | None:
        """Return a message to begin with; None if there is none in time, or will be none."""
        self._check_process()
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            message = take(self._taken)
            if message is None:
                left = None if deadline is None else max(deadline - monotonic(), 0.0)
                messages = self._demand(None, left)
                if not messages:
                    return None
                self._taken.extend(messages)
            elif not message.is_answered:  # its time may be over, or its connection lost
                return BlockingMessage(self, message)

    def take(self, max_messages: int | None, timeout: float | None) -> Batch[BlockingMessage]:
        """Return what waits, or comes first; an empty list if there is nothing in time, or will be nothing."""
        return self._wrap(self._demand(max_messages, timeout))

    def _demand(self, max_messages: int | None, timeout: float | None) -> list[Message]:
        demand, loop_client = Demand(max_messages), self._loop_client
        try:
            loop_client.put(partial(self._on_demand, demand), demand.resolve)
            if timeout is None:
                while not demand.join(SIGNAL_WAIT_MAX):
                    pass
            elif not demand.join(timeout):
                loop_client.put(partial(self._on_leave, demand))
            return demand.get()
        except Closed:
            if loop_client.is_here:
                return []
            raise
        except KeyboardInterrupt:
            self._put(partial(self._on_drop, demand))
            raise

    def gather(self, batches: Batches, timeout: float | None) -> Batch[BlockingMessage]:
        """As ``take``, of batches that wait until they are full."""
        demand = Demand(None)

        async def gather() -> None:
            messages: list[Message] = []
            with anyio.move_on_after(timeout):
                messages = await anext(batches, [])
            demand.resolve(None, messages)

        try:
            self._loop_client.run(gather)
        except Closed:
            if self._loop_client.is_here:
                return self._wrap([])
            raise
        except KeyboardInterrupt:
            self._put(partial(self._on_drop, demand))
            raise
        return self._wrap(demand.given)

    def finish(self, message: Message) -> None:
        """Have a message finished soon."""
        self._check_process()
        self._finished.append(message)
        if not self._is_attentive:
            try:
                self._is_attentive = True
                self._put(self._attend)
            except BaseException:
                self._is_attentive = False
                raise

    def requeue_now(self, message: Message) -> None:
        """Have a message delivered again at once; that is no failure."""
        self._put(partial(message.session.requeue_now, [message]))

    def tell(self, function: Callable[[], object]) -> None:
        """Have a function called in the event loop, after all that was finished before."""
        self._put(partial(self._after_finished, function))

    def answer(self, function: Callable[[], None]) -> None:
        """Call a function in the event loop, after all that was finished before, and raise what it raises."""
        with self._after_the_end():
            self._loop_client.ask(partial(self._after_finished, function))

    def _put(self, function: Callable[[], object]) -> None:
        with self._after_the_end():
            self._loop_client.put(function)

    @contextmanager
    def _after_the_end(self) -> Iterator[None]:
        """After the end nothing is done, as with any answer on a lost connection."""
        try:
            yield
        except Closed:
            if not self._loop_client.is_here:
                raise

    def _check_process(self) -> None:
        """Refuse what memory of the parent a forked process finds here."""
        if not self._loop_client.is_here:
            self._loop_client.check()

    def _wrap(self, messages: list[Message]) -> Batch[BlockingMessage]:
        return Batch((BlockingMessage(self, message) for message in messages), _finish_those_left)

    # ---- in the event loop ---------------------------------------------------------------------------------------

    def stop(self, timeout: float | None = None) -> None:
        """Finish what threads have finished so far, and stop the consumer."""
        self._finish_all()
        self._consumer.stop(timeout)

    async def _feed(self) -> None:
        """Give messages to those who wait, for as long as there are any."""
        while await self._consumer._wait_for_messages():
            self._serve()
        for demand in self._waiting:
            self._end(demand)
        self._waiting.clear()

    def _end(self, demand: Demand) -> None:
        """Tell a waiting thread that there are no more messages, or why the consumer has failed."""
        try:
            self._consumer._connections.check_failure()
        except NSQError as error:
            demand.resolve(error)
        else:
            demand.resolve(None, [])

    def _serve(self) -> None:
        inbox, waiting = self._consumer._core.inbox, self._waiting
        while waiting and inbox:
            demand = waiting.popleft()
            count = min(len(inbox), demand.max_messages or len(inbox))
            demand.resolve(None, [inbox.popleft() for _ in range(count)])

    def _on_demand(self, demand: Demand) -> None:
        self._finish_all()
        if self._consumer._core.is_closing:
            self._end(demand)
            return
        self._waiting.append(demand)
        self._serve()

    def _on_leave(self, demand: Demand) -> None:
        """Let somebody go who has waited long enough."""
        if demand in self._waiting:
            self._waiting.remove(demand)
            demand.resolve(None, [])

    def _on_drop(self, demand: Demand) -> None:
        """Let somebody go who was interrupted, and may have been given messages that nobody will see."""
        if demand in self._waiting:
            self._waiting.remove(demand)
        for message in demand.given:
            message.session.requeue(message, 0, backoff=False)

    def _attend(self) -> None:
        """Finish what there is to be finished, and look again soon; the threads need not wake anybody meanwhile."""
        if self._finished:
            self._finish_all()
            self._loop_client.call_later(FINISH_DELAY, self._attend)
            return
        self._is_attentive = False
        if self._finished:  # by a thread that has not seen that it would have to wake somebody
            self._is_attentive = True
            self._attend()

    def _finish_all(self) -> None:
        if finished := self._finished:
            self._consumer._core.finish_all([finished.popleft() for _ in range(len(finished))])

    def _after_finished(self, function: Callable[[], T]) -> T:
        self._finish_all()
        return function()


def _finish_those_left(messages: list[BlockingMessage]) -> None:
    for message in messages:
        if not message.is_answered:
            message.finish()

"""Hands messages from the event loop to threads, and their answers back.

    event loop   inbox ─▶ resolve ───┐             ┌──▶ FIN, once for many
    threads                          └─▶ taken ─▶ handled ─▶ finish

A thread and the event loop synchronize once for many messages. Of the messages that wait, each waiting thread gets one,
and the others are taken for all threads. The messages that threads have finished are collected, and once the event loop
is woken, it checks for more every ``FINISH_DELAY`` until there are none. Messages that were taken for a thread that was
interrupted, and messages that no thread has begun at the stop, are requeued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from nsqkit.clock import NS_PER_S, move_on_after
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
"""Seconds for which a finished message may wait for others, unless its thread waits for messages meanwhile."""


class Request(OneShot[list["Message"]]):
    """What a thread waits for.

    Attributes:
        max_messages: the most that it takes; None for all that wait.
        is_shared: the messages behind those may be taken for all threads.
    """

    __slots__ = ("is_shared", "max_messages")

    def __init__(self, max_messages: int | None, *, is_shared: bool) -> None:
        super().__init__()
        self.max_messages = max_messages
        self.is_shared = is_shared


class ThreadReceiver:
    """The messages of one consumer, for threads."""

    def __init__(self, loop_client: LoopClient[Consumer]) -> None:
        self._loop_client = loop_client
        self._subscription = loop_client.client.subscription
        self._waiting: dict[Request, None] = {}  # an ordered set
        self._inbox_user_count = 0  # as in ``using_inbox``
        self._taken: deque[Message] = deque()
        self._finished: deque[Message] = deque()
        self._is_finishing = False
        self._subscription.core.queues.append(self._taken)
        loop_client.start(self._feed)

    # ---- for threads ---------------------------------------------------------------------------------------------

    def next(self, timeout: float | None = None) -> BlockingMessage | None:
        """Return the next message; None after ``timeout`` seconds, or once the consumer is stopped."""
        self._check_process()
        now_ns = self._subscription.now_ns
        deadline_ns = None if timeout is None else now_ns() + round(timeout * NS_PER_S)
        while True:
            message = take(self._taken)
            if message is None:
                left = None if deadline_ns is None else max(deadline_ns - now_ns(), 0) / NS_PER_S
                messages = self._receive(Request(1, is_shared=True), left)
                if not messages:
                    return None
                message = messages[0]
            if not message.is_answered:  # else it has timed out, or lost its connection
                return BlockingMessage(self, message)

    def take(self, max_messages: int | None, timeout: float | None) -> Batch[BlockingMessage]:
        """Return the waiting messages, or wait for some; an empty list where ``next`` returns None."""
        return self._wrap(self._receive(Request(max_messages, is_shared=False), timeout))

    def _receive(self, request: Request, timeout: float | None) -> list[Message]:
        loop_client = self._loop_client
        try:
            loop_client.put(partial(self._on_wait, request), request.resolve)
            if timeout is None:
                while not request.join(SIGNAL_WAIT_MAX):
                    loop_client.check()
            elif not request.join(timeout):
                loop_client.put(partial(self._withdraw, request))
            return request.get()
        except Closed:
            if loop_client.is_here:
                return []
            raise
        except KeyboardInterrupt:
            self._put(partial(self._on_interrupt, request))
            raise

    def take_full(self, batches: Batches, timeout: float | None) -> Batch[BlockingMessage]:
        """Do as ``take``, with batches that wait until they are full."""
        result = OneShot[list["Message"]]()

        async def gather() -> None:
            messages: list[Message] = []
            with self.using_inbox(), move_on_after(self._subscription.check_entered(), timeout) as scope:
                messages = await anext(batches, [])
            if scope.cancelled_caught:  # perhaps while the batch was to be filled
                messages = batches.take()
            result.resolve(None, messages)

        try:
            self._loop_client.run(gather)
        except Closed:
            if self._loop_client.is_here:
                return self._wrap([])
            raise
        except KeyboardInterrupt:
            self._put(partial(self._requeue_taken, result))
            raise
        return self._wrap(result.result())

    def finish(self, message: Message) -> None:
        """Finish a message soon, without waiting for the event loop."""
        self._check_process()
        self._finished.append(message)
        if not self._is_finishing:
            try:
                self._is_finishing = True
                self._put(self._finish_repeatedly)
            except BaseException:
                self._is_finishing = False
                raise

    def requeue_now(self, message: Message) -> None:
        """Requeue a message soon; that is no failure."""
        self._put(partial(self._subscription.requeue_now, message))

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the event loop, after all messages finished so far are finished there."""
        self._put(partial(self._call, function))

    def call(self, function: Callable[[], None]) -> None:
        """Do as ``call_soon``, wait for it, and raise what the function raises."""
        with self._ignore_closed():
            self._loop_client.ask(partial(self._call, function))

    def _put(self, function: Callable[[], object]) -> None:
        with self._ignore_closed():
            self._loop_client.put(function)

    @contextmanager
    def _ignore_closed(self) -> Iterator[None]:
        """Ignore that the consumer is closed, because answers on a lost connection do nothing."""
        try:
            yield
        except Closed:
            if not self._loop_client.is_here:
                raise

    def _check_process(self) -> None:
        """Refuse use in a forked process, which has a copy of this object."""
        if not self._loop_client.is_here:
            self._loop_client.check()

    def _wrap(self, messages: list[Message]) -> Batch[BlockingMessage]:
        return Batch((BlockingMessage(self, message) for message in messages), _finish_unanswered)

    # ---- in the event loop ---------------------------------------------------------------------------------------

    def stop(self, timeout: float | None = None) -> None:
        """Finish what threads have finished so far, and stop the consumer."""
        self._finish_all()
        self._loop_client.client.stop(timeout)

    async def _feed(self) -> None:
        """Give messages to waiting threads until the consumer is stopped, or the event loop ends."""
        try:
            while (arrival := self._subscription.arrival()) is not None:
                await arrival.wait()
                self._distribute()
        finally:
            for request in self._waiting:
                self._end(request)
            self._waiting.clear()

    def _end(self, request: Request) -> None:
        try:
            self._subscription.check_failure()
        except NSQError as error:
            request.resolve(error)
        else:
            request.resolve(None, [])

    def _distribute(self) -> None:
        inbox, waiting = self._subscription.core.inbox, self._waiting
        are_shared = False
        while waiting and inbox:
            request = next(iter(waiting))
            del waiting[request]
            are_shared |= request.is_shared
            count = min(len(inbox), request.max_messages or len(inbox))
            request.resolve(None, [inbox.popleft() for _ in range(count)])
        if are_shared and not self._inbox_user_count:
            self._taken.extend(inbox)
            inbox.clear()

    @contextmanager
    def using_inbox(self) -> Iterator[None]:
        """Leave messages for which no thread waits in the inbox, where batches and handlers of ``run`` take them."""
        self._return_taken()
        self._inbox_user_count += 1
        try:
            yield
        finally:
            self._inbox_user_count -= 1

    def _return_taken(self) -> None:
        """Put messages that busy threads have left back into the inbox."""
        left = []
        while (message := take(self._taken)) is not None:  # threads take some meanwhile
            if not message.is_answered:
                left.append(message)
        self._subscription.core.inbox.extendleft(reversed(left))

    def _on_wait(self, request: Request) -> None:
        self._finish_all()
        if self._subscription.core.is_closing:
            self._end(request)
            return
        self._return_taken()
        self._waiting[request] = None
        self._distribute()

    def _withdraw(self, request: Request) -> None:
        if request in self._waiting:
            del self._waiting[request]
            request.resolve(None, [])

    def _on_interrupt(self, request: Request) -> None:
        self._withdraw(request)
        self._requeue_taken(request)

    def _requeue_taken(self, result: OneShot[list[Message]]) -> None:
        """Requeue the messages that were taken for a thread that was interrupted."""
        if result.is_answered and result.error is None:
            for message in result.result():
                self._subscription.requeue_now(message)

    def _finish_repeatedly(self) -> None:
        """Finish the messages of threads, and check again soon; threads need not wake the event loop meanwhile."""
        if self._finished:
            self._finish_all()
            self._loop_client.call_later(FINISH_DELAY, self._finish_repeatedly)
            return
        self._is_finishing = False
        if self._finished:  # by a thread that has read _is_finishing just before
            self._is_finishing = True
            self._finish_repeatedly()

    def _finish_all(self) -> None:
        if finished := self._finished:
            self._subscription.finish_all([finished.popleft() for _ in range(len(finished))])

    def _call(self, function: Callable[[], T]) -> T:
        self._finish_all()
        return function()


def _finish_unanswered(messages: list[BlockingMessage]) -> None:
    for message in messages:
        if not message.is_answered:
            message.finish()

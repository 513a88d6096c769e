"""What runs a user's handlers: standing workers, each with one message, or one batch, at a time.

    the handler …                        the message is …
    returns                              finished
    raises                               requeued with its delay, which counts for backoff
    has answered it itself               left alone
    is cancelled from outside            given back at once
    outlives the message's time          nsqd's again: what is answered later does nothing; with ``cancel_at_timeout``
                                         the handler is cancelled
    would be called too often            given up: see ``giving_up``

The rule it guards: a message has one outcome, of which nsqd is told once. Nothing is awaited, made or logged for a
message beyond what its handler does; a plain handler that keeps the event loop for a breath lets others have a turn.

How to read it: ``run`` starts the workers, ``_work`` is one of them; then what is done for one message, and for those
who asked for more: threads, batches, touching, cancelling.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from nsqkit.consumer.lanes import Lanes
from nsqkit.consumer.session import TIMED_OUT
from nsqkit.consumer.thread_message import ThreadMessage

if TYPE_CHECKING:
    from nsqkit.clock import Clock
    from nsqkit.consumer.core import ConsumerCore
    from nsqkit.consumer.handler_options import HandlerOptions
    from nsqkit.consumer.message import Message

logger = logging.getLogger("nsqkit.consumer")

BREATH = 0.02
"""Seconds that a handler which is not async may keep the event loop before other tasks get a turn."""

LOOK_EVERY = 16
"""Messages between two looks at the clock, once so many have been quick."""

ATTEMPTS_NO_LIMIT = 1 << 16

TOUCH_NS = 1_000_000_000
"""A timeout of messages, while there is no connection that tells one."""

TOUCH_PARTS = 4
"""Parts of a message's timeout: after each it is looked whether the message has to be touched."""


class Handling:
    """One ``run``: a handler, and the workers that call it.

    Args:
        core: the consumer.
        handler: called with each message.
        options: how it is called.
        clock: the time.
        wait: returns True when there may be messages, False when there will be none.

    Attributes:
        attempts_max: deliveries after which a message is given up.
    """

    def __init__(
        self,
        core: ConsumerCore,
        handler: Callable[[Message], Any],
        options: HandlerOptions,
        *,
        clock: Clock,
        wait: Callable[[], Awaitable[bool]],
    ) -> None:
        self._core = core
        self._handler = handler
        self._options = options
        self._clock = clock
        self._wait = wait
        self.attempts_max = core.options.max_attempts or ATTEMPTS_NO_LIMIT
        self._begun: dict[Message, anyio.CancelScope] = {}  # only where somebody asks for it
        self._is_watched = options.auto_touch or options.cancel_at_timeout
        self._is_plain = not (self._is_watched or options.in_threads)
        self._threads = anyio.CapacityLimiter(options.concurrency) if options.in_threads else None
        self._line: anyio.Lock | None = None  # of workers who share a queue
        self._lanes: Lanes | None = None
        if options.key is not None:
            self._lanes = Lanes(core.inbox, options.concurrency, options.key, self.fail)
        elif options.concurrency > 1:
            self._line = anyio.Lock(fast_acquire=True)

    async def run(self) -> None:
        """Return when the consumer is closed and the handlers that had begun have returned."""
        queues = [self._core.inbox] * self._options.concurrency if self._lanes is None else self._lanes.queues
        if len(queues) == 1 and not self._options.auto_touch:
            await self._work(queues[0])
            return
        async with anyio.create_task_group() as watching:
            if self._options.auto_touch:
                watching.start_soon(self._keep_touching)
            async with anyio.create_task_group() as workers:
                for queue in queues:
                    workers.start_soon(self._work, queue)
            watching.cancel_scope.cancel()

    # ---- a worker ------------------------------------------------------------------------------------------------

    async def _work(self, queue: deque[Message]) -> None:
        """Handle one message after the other: a standing worker, for a task for each message costs ten times more."""
        work_through = self._work_through if self._is_plain else self._work_through_watched
        while True:
            if self._lanes is not None:
                self._lanes.sort()
            if queue:
                await work_through(queue)
                if queue:
                    await anyio.lowlevel.checkpoint()
            elif not await self._wait_in_line(queue):
                break

    async def _wait_in_line(self, queue: deque[Message]) -> bool:
        """Wait for messages: one worker is woken, and wakes the next, or all would find what the first has left."""
        if self._line is None:
            return await self._wait()
        async with self._line:
            return bool(queue) or await self._wait()

    async def _work_through(self, queue: deque[Message]) -> None:
        """Handle what waits, for a breath; what plain handlers have done is finished together, at its end."""
        handler, attempts_max, is_shared = self._handler, self.attempts_max, self._lanes is None
        breath_ends = monotonic() + BREATH
        count = 0
        look_at = 1
        done: list[Message] = []
        try:
            while queue:
                message = queue.popleft()
                if message.attempts > attempts_max:
                    _finish_each(done)
                    await self.give_up(message)
                elif is_shared or not message.is_answered:  # a lane is not tidied
                    is_awaited = False
                    try:
                        result = handler(message)
                        # Mostly it is None or a coroutine; to call ``isawaitable`` costs a tenth of what handling does.
                        if result is not None and (type(result) is CoroutineType or isawaitable(result)):
                            is_awaited = True
                            if done:
                                _finish_each(done)
                            await result
                    except Exception as error:
                        self.fail(message, error)
                    except BaseException:
                        message.session.requeue(message, 0, backoff=False)
                        raise
                    else:
                        if is_awaited:
                            message.session.finish(message)
                        else:
                            done.append(message)
                count += 1
                if count == look_at:
                    if monotonic() >= breath_ends:
                        return
                    look_at += min(count, LOOK_EVERY)
        finally:
            if done:
                self._core.finish_all(done)

    async def _work_through_watched(self, queue: deque[Message]) -> None:
        message = queue.popleft()
        if message.attempts > self.attempts_max:
            await self.give_up(message)
        elif not message.is_answered:
            await self._handle(message)

    async def _handle(self, message: Message) -> None:
        with anyio.CancelScope() as scope:
            if self._is_watched:
                self._begun[message] = scope
            try:
                await self._call(message)
            except Exception as error:
                self.fail(message, error)
            except BaseException:
                message.session.requeue(message, 0, backoff=False)
                raise
            else:
                message.session.finish(message)
            finally:
                self._begun.pop(message, None)
        if scope.cancelled_caught:
            logger.warning(
                "the handler of %r was cancelled: its time was over", message, extra=_fields(message)
            )

    async def _call(self, message: Message) -> None:
        if self._threads is not None:
            await anyio.to_thread.run_sync(self._handler, ThreadMessage(message), limiter=self._threads)
            return
        result = self._handler(message)
        if result is not None and isawaitable(result):
            await result

    def fail(self, message: Message, error: Exception) -> None:
        """Requeue a message whose handler has raised."""
        logger.error(
            "the handler failed on %r from %s",
            message,
            message.nsqd_address,
            exc_info=error,
            extra=_fields(message),
        )
        message.session.requeue(message, None, backoff=True)

    def fail_all(self, messages: list[Message], error: Exception) -> None:
        """Requeue the messages of a batch whose handler has raised; for backoff that is one failure."""
        first = messages[0]
        logger.error(
            "the handler failed on %d messages, the first of them %r",
            len(messages),
            first,
            exc_info=error,
            extra=_fields(first),
        )
        backoff = True
        for message in messages:
            if message.session.requeue(message, None, backoff=backoff):
                backoff = False

    async def give_up(self, message: Message) -> None:
        """Finish a message that was delivered too often, once the policy has done what it does."""
        if message.is_answered:
            return
        logger.warning("giving up on %r", message, extra=_fields(message))
        try:
            result = self._options.giving_up(message)
            if result is not None and isawaitable(result):
                await result
        except Exception as error:
            self.fail(message, error)
        except BaseException:
            message.session.requeue(message, 0, backoff=False)
            raise
        else:
            message.session.finish(message)
            self._core.given_up_count += 1

    # ---- what is watched -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Cancel the handlers of messages that nsqd has taken back, if that was asked for."""
        if self._options.cancel_at_timeout:
            for message, scope in self._begun.items():
                if message.deadline_ns == TIMED_OUT:
                    scope.cancel()

    def empty_lanes(self) -> None:
        """Put what waits in lanes back where it came from: nobody has begun with it."""
        if self._lanes is not None:
            self._core.inbox.extendleft(reversed(self._lanes.take_all()))

    async def _keep_touching(self) -> None:
        """Touch what is being handled, in time, until its handler returns or nsqd gives no more time."""
        while True:
            now_ns = self._clock.now_ns()
            timeout_ns = min((session.msg_timeout_ns for session in self._core.sessions), default=TOUCH_NS)
            for message in list(self._begun):
                if (
                    message.deadline_ns - now_ns < message.session.msg_timeout_ns // 2
                    and not message.is_answered
                ):
                    message.touch()
            await self._clock.wait_until(now_ns + timeout_ns // TOUCH_PARTS)


def _finish_each(done: list[Message]) -> None:
    """Finish messages before others have a turn, who may have more to be sent with it."""
    for message in done:
        message.session.finish(message)
    done.clear()


def _fields(message: Message) -> dict[str, object]:
    return {
        "nsqd_address": message.nsqd_address,
        "message_id": message.id.decode(errors="replace"),
        "attempts": message.attempts,
    }

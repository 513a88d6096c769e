"""Runs a user's handler: standing workers, each with one message at a time.

    the handler …                        the message is …
    returns                              finished
    raises                               requeued with its delay, which counts for backoff; at the last of
                                         ``max_attempts``, given up: see ``giving_up``
    has answered it itself               left alone
    is cancelled                         given back at once
    outlives the message's time          delivered again by nsqd; a later answer does nothing. With
                                         ``cancel_at_timeout`` the handler is cancelled
    returns what nothing can await       as if the handler had raised: see ``handler``

The rule it guards: a message has one outcome, of which nsqd is told once. Nothing is awaited, made or logged for a
message beyond what its handler does. A plain handler that keeps the event loop for ``TIME_SLICE`` gives other tasks a
turn.

How to read it: ``run`` starts the workers, ``_work`` is one of them; then what is done for one message, and for the
options: threads, touching, cancelling.
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

from nsqkit.clock import NS_PER_S
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.consumer.handler import call_plain, check_result, name_of
from nsqkit.consumer.keyed_queues import KeyedQueues
from nsqkit.consumer.policy import policy_of
from nsqkit.consumer.session import TIMED_OUT
from nsqkit.consumer.thread_message import ThreadMessage

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from nsqkit.clock import Clock
    from nsqkit.consumer.core import ConsumerCore
    from nsqkit.consumer.handler_options import HandlerOptions
    from nsqkit.consumer.message import Message

logger = logging.getLogger("nsqkit.consumer")

TIME_SLICE = 0.02
"""Seconds that a handler which is not async may keep the event loop before other tasks get a turn."""

BLOCKED_MAX = 1.0
"""Seconds that it may keep it before a warning says so: heartbeats wait meanwhile."""

CLOCK_CHECK_COUNT = 16
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
        attempts_max: the attempt after which a message on which the handler fails is given up.
        concurrency: handlers that run at a time.
        scope: cancels the handlers, where they run in the event loop; None before they do.
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
        self._give_up = policy_of(options.giving_up)
        self._clock = clock
        self._wait = wait
        self.attempts_max = core.options.max_attempts or ATTEMPTS_NO_LIMIT
        self.concurrency = options.concurrency
        self.scope: anyio.CancelScope | None = None
        self._begun: dict[Message, anyio.CancelScope] = {}  # only where an option asks for it
        self._is_watched = options.auto_touch or options.cancel_at_timeout
        self._is_plain = not (self._is_watched or options.in_threads)
        self._threads = anyio.CapacityLimiter(options.concurrency) if options.in_threads else None
        self._thread_scopes: set[anyio.CancelScope] = set()
        self._limit = anyio.CancelScope()
        self._working_count = 0
        self._has_warned_of_time = False
        self._has_warned_of_cancelling = False
        self._line: anyio.Lock | None = None  # of workers who share a queue
        self._keyed_queues: KeyedQueues | None = None
        if options.key is not None:
            self._keyed_queues = KeyedQueues(core.inbox, options.concurrency, options.key)
            core.queues += self._keyed_queues.queues
        elif options.concurrency > 1:
            self._line = anyio.Lock(fast_acquire=True)

    async def run(self) -> None:
        """Return when the consumer is closed and the handlers that had begun have returned."""
        queues = [self._core.inbox] * self._options.concurrency
        if self._keyed_queues is not None:
            queues = self._keyed_queues.queues
        if len(queues) == 1 and self._is_plain:
            await self._work(queues[0])
            return
        async with anyio.create_task_group() as tasks:
            if self._options.auto_touch:
                tasks.start_soon(self._keep_touching)
            if self._threads is not None:
                tasks.start_soon(self._limit_threads)
            self._working_count = len(queues)
            for queue in queues:
                tasks.start_soon(self._work_in, tasks, queue)

    async def _work_in(self, tasks: TaskGroup, queue: deque[Message]) -> None:
        """Be one of several workers, the last of which ends the other tasks."""
        try:
            await self._work(queue)
        finally:
            self._working_count -= 1
            if not self._working_count:
                tasks.cancel_scope.cancel()
                self._limit.cancel()

    def cancel(self) -> None:
        """Cancel the handlers, and wait no longer for those in threads, which cannot be cancelled."""
        if self.scope is not None:
            self.scope.cancel()
        for scope in list(self._thread_scopes):
            scope.cancel()

    # ---- a worker ------------------------------------------------------------------------------------------------

    async def _work(self, queue: deque[Message]) -> None:
        """Handle one message after the other: a standing worker, for a task for each message costs ten times more."""
        work_through = self._work_through if self._is_plain else self._work_through_watched
        while True:
            if self._keyed_queues is not None:
                for message, error in self._keyed_queues.sort():
                    await self.fail(message, error)
            if queue:
                self._refresh()
                await work_through(queue)
                if queue:
                    await anyio.lowlevel.checkpoint()
            elif not await self._wait_in_line(queue):
                break

    def _refresh(self) -> None:
        """Have messages that wait touched, or dropped, if a handler has kept the event loop from doing so in time."""
        refresh_ns = self._core.refresh_ns
        if refresh_ns is not None and (now_ns := self._clock.now_ns()) >= refresh_ns:
            self._core.handle_deadline(now_ns)

    async def _wait_in_line(self, queue: deque[Message]) -> bool:
        """Wait for messages: one worker is woken, and wakes the next, or all would find what the first has left."""
        if self._line is None:
            return await self._wait()
        async with self._line:
            return bool(queue) or await self._wait()

    async def _work_through(self, queue: deque[Message]) -> None:
        """Handle what waits, for a time slice; what plain handlers have done is finished together, at its end."""
        handler, attempts_max, is_shared = self._handler, self.attempts_max, self._keyed_queues is None
        looked_at = monotonic()
        slice_ends = looked_at + TIME_SLICE
        count = 0
        look_at = 1
        is_awaited = False
        done: list[Message] = []
        try:
            while queue:
                message = queue.popleft()
                if message.attempts >= attempts_max:
                    _finish_each(done)
                    is_awaited = True
                    await self._handle(message)
                elif is_shared or not message.is_answered:  # a lane is not tidied
                    try:
                        result = handler(message)
                        # Mostly it is None or a coroutine; to call ``isawaitable`` costs a tenth of what handling does.
                        if result is not None and (type(result) is CoroutineType or isawaitable(result)):
                            is_awaited = True
                            if done:
                                _finish_each(done)
                            await result
                            message.session.finish(message)
                        else:
                            if result is not None:
                                check_result(result)
                            done.append(message)
                    except Exception as error:
                        self.requeue(message, error)
                    except BaseException:
                        _requeue_now(message)
                        raise
                count += 1
                if count == look_at:
                    now = monotonic()
                    if now - looked_at >= BLOCKED_MAX and not is_awaited:
                        self.check_time(now - looked_at)
                    if now >= slice_ends:
                        return
                    look_at += min(count, CLOCK_CHECK_COUNT)
                    looked_at = now
                    is_awaited = False
        finally:
            if done:
                self._core.finish_all(done)

    async def _work_through_watched(self, queue: deque[Message]) -> None:
        await self._handle(queue.popleft())

    # ---- one message ---------------------------------------------------------------------------------------------

    async def _handle(self, message: Message) -> None:
        """Handle a message by itself: with an option that asks for it, or at its last attempt."""
        is_last = message.attempts >= self.attempts_max
        if message.is_answered:
            return
        if is_last and not self._core.last_attempts.begin(message):
            await self.give_up(message, self._core.last_attempts.error(message))
            return
        failure: Exception | None = None
        with anyio.CancelScope() as scope:
            if self._is_watched:
                self._begun[message] = scope
            try:
                try:
                    await self._call(message)
                except Exception as error:
                    failure = error
                else:
                    self.finish(message)
            except BaseException:
                if not scope.cancel_called:
                    self._core.last_attempts.forget(message)
                    _requeue_now(message)
                raise
            finally:
                if failure is None:
                    self._begun.pop(message, None)
        if scope.cancelled_caught:
            logger.warning(
                "the handler of %r was cancelled: its time was over", message, extra=_fields(message)
            )
        if failure is not None:
            try:
                await self.fail(message, failure)
            finally:
                self._begun.pop(message, None)

    def finish(self, message: Message) -> None:
        """Finish a message. A handler that was too late for that has used up an attempt."""
        if message.session.finish(message):
            self._core.last_attempts.forget(message)

    async def _call(self, message: Message) -> None:
        if self._threads is not None:
            await self._call_in_thread(message, self._threads)
            return
        began_at = monotonic()
        result = self._handler(message)
        if result is not None and isawaitable(result):
            await result
            return
        if result is not None:
            check_result(result)
        self.check_time(monotonic() - began_at)
        if self._options.cancel_at_timeout and not self._has_warned_of_cancelling:
            self._has_warned_of_cancelling = True
            logger.warning(
                "cancel_at_timeout does nothing: the handler %s is not async",
                name_of(self._handler),
                extra=_fields(message),
            )

    async def _call_in_thread(self, message: Message, limiter: anyio.CapacityLimiter) -> None:
        """Wait for the handler even if this task is cancelled, since the thread goes on; ``cancel`` ends the wait."""
        with anyio.CancelScope(shield=True) as scope:
            self._thread_scopes.add(scope)
            try:
                await anyio.to_thread.run_sync(
                    call_plain, self._handler, ThreadMessage(message), limiter=limiter, abandon_on_cancel=True
                )
                return
            finally:
                self._thread_scopes.discard(scope)
        logger.warning(
            "the handler of %r still runs in its thread and cannot be cancelled; the message is given back",
            message,
            extra=_fields(message),
        )
        _requeue_now(message)

    async def _limit_threads(self) -> None:
        """Once ``run`` is cancelled, wait for handlers in threads for ``close_timeout``, and then no longer."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True) as self._limit:
                if self._thread_scopes:
                    limit_ns = round(self._core.options.close_timeout * NS_PER_S)
                    await self._clock.wait_until(self._clock.now_ns() + limit_ns)
                    self.cancel()

    async def fail(self, message: Message, error: Exception) -> None:
        """Requeue a message on which its handler has failed, or give it up at its last attempt."""
        if message.attempts < self.attempts_max:
            self.requeue(message, error)
        elif not message.is_answered:
            self._core.last_attempts.fail(message, error)
            await self.give_up(message, error)

    async def give_up(self, message: Message, error: Exception | None) -> None:
        """Finish a message once ``giving_up`` has done with it; requeue it if that fails.

        Args:
            message: the message.
            error: what its handler raised last; None if it gave no answer in time.
        """
        if message.is_answered:
            return
        logger.warning(
            "giving up on %r from %s", message, message.nsqd_address, exc_info=error, extra=_fields(message)
        )
        try:
            result = self._give_up(message, self._given_up(message, error))
            if result is not None:
                if isawaitable(result):
                    await result
                else:
                    check_result(result, name="giving_up")
        except Exception as failure:
            logger.error("giving_up failed on %r", message, exc_info=failure, extra=_fields(message))
            message.session.requeue(message, None, backoff=True)
        except BaseException:
            _requeue_now(message)
            raise
        else:
            message.session.finish(message)
            self._core.given_up_count += 1
            self._core.last_attempts.forget(message)

    def _given_up(self, message: Message, error: Exception | None) -> GivenUp:
        return GivenUp(
            topic=self._core.topic.decode("ascii"),
            channel=self._core.channel.decode("ascii"),
            nsqd_address=message.nsqd_address,
            id=message.id.decode(errors="replace"),
            attempts=message.attempts,
            timestamp_ns=message.timestamp_ns,
            given_up_ns=self._clock.now_ns(),
            error=error,
            body=message.body,
        )

    def requeue(self, message: Message, error: Exception) -> None:
        """Requeue a message on which its handler has failed."""
        logger.error(
            "the handler failed on %r from %s",
            message,
            message.nsqd_address,
            exc_info=error,
            extra=_fields(message),
        )
        message.session.requeue(message, None, backoff=True)

    async def fail_all(self, messages: list[Message], error: Exception) -> None:
        """Requeue the messages of a batch whose handler has raised, or give up those at their last attempt.

        For backoff that is one failure.
        """
        first = messages[0]
        logger.error(
            "the handler failed on %d messages, the first of them %r",
            len(messages),
            first,
            exc_info=error,
            extra=_fields(first),
        )
        last = [message for message in messages if message.attempts >= self.attempts_max]
        backoff = True
        for message in messages:
            if message.attempts < self.attempts_max and message.session.requeue(
                message, None, backoff=backoff
            ):
                backoff = False
        for message in last:
            await self.fail(message, error)

    def check_time(self, seconds: float) -> None:
        """Warn once if a handler that is not async has kept the event loop for too long."""
        if seconds >= BLOCKED_MAX and not self._has_warned_of_time:
            self._has_warned_of_time = True
            logger.warning(
                "the handler %s kept the event loop for %.1f s. No heartbeat is answered meanwhile, and nsqd may close "
                "the connection: make the handler async, or call run with in_threads=True",
                name_of(self._handler),
                seconds,
                extra={
                    "topic": self._core.topic.decode("ascii"),
                    "channel": self._core.channel.decode("ascii"),
                },
            )

    # ---- what is watched -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Cancel the handlers of messages that nsqd has taken back, if that was asked for."""
        if self._options.cancel_at_timeout:
            for message, scope in self._begun.items():
                if message.deadline_ns == TIMED_OUT:
                    scope.cancel()

    def empty_keyed_queues(self) -> None:
        """Put messages that wait in lanes back into the inbox."""
        if self._keyed_queues is not None:
            self._core.remove_queues(self._keyed_queues.queues)

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


def _requeue_now(message: Message) -> None:
    message.session.requeue_now([message])


def _fields(message: Message) -> dict[str, object]:
    return {
        "nsqd_address": message.nsqd_address,
        "message_id": message.id.decode(errors="replace"),
        "attempts": message.attempts,
    }

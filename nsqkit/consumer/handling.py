"""Calls a user's handler: long-lived workers, each with one message at a time.

    the handler …                        the message is …
    returns                              finished
    raises                               requeued with its delay, which counts for backoff; at the last of
                                         ``max_attempts``, given up: see ``dead_letter``
    has answered it itself               left alone
    is cancelled                         requeued at once
    raises SystemExit                    requeued at once, and ``run`` raises it
    raises CancelledError, but its task  treated as if the handler had raised another error: it has awaited a task
    was not cancelled                    that was cancelled
    takes longer than the timeout        delivered again by nsqd; a later answer does nothing. With
                                         ``cancel_at_timeout`` the handler is cancelled
    returns an object that cannot be     treated as if the handler had raised: see ``handler``
    awaited here

A message has one outcome, which is sent to nsqd once. Except for the handler's own work, nothing is awaited, created or
logged for a message. After a plain handler has kept the event loop for ``TIME_SLICE_NS``, other tasks get a turn.

``run`` starts workers, each of which runs ``_work``. The sections below it handle one message, and implement the
options for threads, touching and cancelling.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from nsqkit.clock import NS_PER_S
from nsqkit.consumer.cancellation import failure_of
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.consumer.handler import call_in_thread, check_result, name_of
from nsqkit.consumer.keyed_queues import KeyedQueues
from nsqkit.consumer.message import FIRST
from nsqkit.consumer.policy import policy_of
from nsqkit.consumer.session import TIMED_OUT
from nsqkit.consumer.thread_message import ThreadMessage
from nsqkit.loop_thread import CarriedExit

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from nsqkit.consumer.handler_options import HandlerOptions
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.subscription import Subscription

logger = logging.getLogger("nsqkit.consumer")

TIME_SLICE_NS: Final = NS_PER_S // 50
"""How long a plain handler may keep the event loop before other tasks get a turn."""

BLOCKED_MAX_NS: Final = NS_PER_S
"""How long it may keep it before a warning is logged: heartbeats are not answered meanwhile."""

CLOCK_CHECK_COUNT: Final = 32
"""Messages between two readings of the clock, once that many have been handled quickly."""

ATTEMPTS_NO_LIMIT: Final = 1 << 16

TOUCH_NS: Final = NS_PER_S
"""The longest message timeout to assume: an nsqd with a shorter one than the others may connect meanwhile."""

TOUCH_PARTS: Final = 4
"""Parts of a message's timeout: after each, the messages of running handlers are checked."""


class Handling:
    """One call of ``run``: a handler, and the workers that call it.

    Attributes:
        attempts_max: the attempt after which a message is given up if the handler fails.
        concurrency: handlers that run at a time.
        scope: cancels the handlers, where they run in the event loop; None before they do.
    """

    def __init__(self, subscription: Subscription, handler: Callable[[Message], Any], options: HandlerOptions) -> None:
        core = subscription.core
        self._subscription = subscription
        self._core = core
        self._last_attempts = core.last_attempts
        self._clock = subscription.check_entered()
        self._handler = handler
        self._options = options
        self._give_up = policy_of(options.giving_up)
        self.attempts_max = subscription.options.max_attempts or ATTEMPTS_NO_LIMIT
        self.concurrency = options.concurrency
        self.scope: anyio.CancelScope | None = None
        self._begun: dict[Message, anyio.CancelScope] = {}  # only where an option requires it
        self._is_watched = options.auto_touch or options.cancel_at_timeout
        self._is_plain = not (self._is_watched or options.in_threads)
        self._threads = anyio.CapacityLimiter(options.concurrency) if options.in_threads else None
        self._thread_scopes: dict[anyio.CancelScope, None] = {}
        self._limit = anyio.CancelScope()
        self._working_count = 0
        self._carried: CarriedExit | None = None
        self._has_warned_of_time = False
        self._has_warned_of_cancelling = False
        self._lock: anyio.Lock | None = None  # of workers that share a queue
        self._keyed_queues: KeyedQueues | None = None
        if options.key is not None:
            self._keyed_queues = KeyedQueues(core.inbox, options.concurrency, options.key)
            core.queues += self._keyed_queues.queues
        elif options.concurrency > 1:
            self._lock = anyio.Lock(fast_acquire=True)

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
        if self._carried is not None:
            raise self._carried

    async def _work_in(self, tasks: TaskGroup, queue: deque[Message]) -> None:
        """Run one of several workers; the last one to end cancels the other tasks."""
        try:
            await self._work(queue)
        except (CarriedExit, SystemExit, KeyboardInterrupt) as error:  # the last two would end asyncio's event loop
            self._carried = error if isinstance(error, CarriedExit) else CarriedExit(error)
            tasks.cancel_scope.cancel()
        finally:
            self._working_count -= 1
            if not self._working_count:
                tasks.cancel_scope.cancel()
                self._limit.cancel()

    def cancel(self) -> None:
        """Cancel the handlers, and stop waiting for those in threads, which cannot be cancelled."""
        if self.scope is not None:
            self.scope.cancel()
        for scope in list(self._thread_scopes):
            scope.cancel()

    # ---- a worker ------------------------------------------------------------------------------------------------

    async def _work(self, queue: deque[Message]) -> None:
        """Handle one message after the other; a task for each message would cost ten times more."""
        handle = self._handle_waiting if self._is_plain else self._handle_watched
        while True:
            if self._keyed_queues is not None:
                while failures := self._keyed_queues.sort():  # others may arrive meanwhile
                    for message, error in failures:
                        await self.fail(message, error)
            if queue:
                await handle(queue)
                if queue:
                    await anyio.lowlevel.checkpoint()
            elif not await self._wait(queue):
                break

    async def _wait(self, queue: deque[Message]) -> bool:
        """Wait for messages; return False if the consumer is stopped.

        Workers that share a queue are woken one after the other, as the first may take all.
        """
        if self._lock is None:
            return await self._wait_for_arrival()
        async with self._lock:
            return bool(queue) or await self._wait_for_arrival()

    async def _wait_for_arrival(self) -> bool:
        arrival = self._subscription.arrival()
        if arrival is not None:
            await arrival.wait()
        return arrival is not None

    def _catch_up(self) -> int:
        """Extend the messages that wait if that is due; return the time."""
        now_ns, refresh_ns = self._clock.now_ns(), self._core.refresh_ns
        if refresh_ns is not None and now_ns >= refresh_ns:
            self._subscription.catch_up(now_ns)
        return now_ns

    async def _handle_waiting(self, queue: deque[Message]) -> None:
        """Handle waiting messages for a time slice; those of plain handlers are finished together, at its end."""
        checked_ns = self._catch_up()
        handler, attempts_max, is_shared = self._handler, self.attempts_max, self._keyed_queues is None
        now_ns = self._clock.now_ns
        slice_end_ns = checked_ns + TIME_SLICE_NS
        count = 0
        check_at = 1
        is_awaited = False
        done: list[Message] = []
        try:
            while queue:
                message = queue.popleft()
                if message.attempts >= attempts_max:
                    _finish_each(done)
                    is_awaited = True
                    await self._handle(message)
                elif is_shared or not message.is_answered:  # such queues are not tidied
                    try:
                        result = handler(message)
                        # Mostly it is None or a coroutine; to call ``isawaitable`` costs a tenth of what handling does.
                        if result is not None and (type(result) is CoroutineType or isawaitable(result)):
                            is_awaited = True
                            if done:
                                _finish_each(done)
                            await result
                            if message.session.finish(message) is FIRST:
                                message.session.connection.wake()
                        else:
                            if result is not None:
                                check_result(result)
                            done.append(message)
                    except BaseException as error:
                        if (failure := failure_of(error)) is None:
                            self._subscription.requeue_now(message)
                            raise
                        self.requeue(message, failure)
                count += 1
                if count == check_at:
                    time_ns = now_ns()
                    if time_ns - checked_ns >= BLOCKED_MAX_NS and not is_awaited:
                        self.check_time(time_ns - checked_ns)
                    if time_ns >= slice_end_ns:
                        return
                    check_at += min(count, CLOCK_CHECK_COUNT)
                    checked_ns = time_ns
                    is_awaited = False
        finally:
            if done:
                self._subscription.finish_all(done)

    async def _handle_watched(self, queue: deque[Message]) -> None:
        self._catch_up()
        if queue:
            await self._handle(queue.popleft())

    # ---- one message ---------------------------------------------------------------------------------------------

    async def _handle(self, message: Message) -> None:
        """Handle one message that is watched, or that is at its last attempt."""
        is_last = message.attempts >= self.attempts_max
        if message.is_answered:
            return
        if is_last and not self._last_attempts.begin(message):
            await self.give_up(message, self._last_attempts.error(message))
            return
        failure: Exception | None = None
        with anyio.CancelScope() as scope:
            if self._is_watched:
                self._begun[message] = scope
            try:
                try:
                    await self._call(message)
                except BaseException as error:
                    if (failure := failure_of(error)) is None:
                        raise
                else:
                    self.finish(message)
            except BaseException:
                if not scope.cancel_called:
                    self._last_attempts.forget(message)
                    self._subscription.requeue_now(message)
                raise
            finally:
                self._begun.pop(message, None)
        if scope.cancelled_caught:
            logger.warning("the handler of %r was cancelled: its time was over", message, extra=_fields(message))
        if failure is not None:
            await self.fail(message, failure)

    def finish(self, message: Message) -> None:
        """Finish a message. If it has timed out, its handler has used up an attempt."""
        if self._subscription.finish(message):
            self._last_attempts.forget(message)

    async def _call(self, message: Message) -> None:
        if self._threads is not None:
            await self._call_in_thread(message, self._threads)
            return
        begun_ns = self._clock.now_ns()
        result = self._handler(message)
        if result is not None and isawaitable(result):
            await result
            return
        if result is not None:
            check_result(result)
        self.check_time(self._clock.now_ns() - begun_ns)
        if self._options.cancel_at_timeout and not self._has_warned_of_cancelling:
            self._has_warned_of_cancelling = True
            logger.warning(
                "cancel_at_timeout does nothing: the handler %s is not async",
                name_of(self._handler),
                extra=_fields(message),
            )

    async def _call_in_thread(self, message: Message, limiter: anyio.CapacityLimiter) -> None:
        """Wait for the handler even if this task is cancelled, since the thread continues; ``cancel`` ends the wait."""
        await anyio.lowlevel.checkpoint_if_cancelled()  # the shield would hide it, and nothing limits the wait then
        with anyio.CancelScope(shield=True) as scope:
            self._thread_scopes[scope] = None
            try:
                await anyio.to_thread.run_sync(
                    call_in_thread, self._handler, ThreadMessage(message), limiter=limiter, abandon_on_cancel=True
                )
                return
            finally:
                self._thread_scopes.pop(scope, None)
        logger.warning(
            "the handler of %r still runs in its thread and cannot be cancelled; the message is requeued",
            message,
            extra=_fields(message),
        )
        self._subscription.requeue_now(message)

    async def _limit_threads(self) -> None:
        """Once ``run`` is cancelled, wait for handlers in threads for ``close_timeout``, and then no longer."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True) as self._limit:
                if self._thread_scopes:
                    limit_ns = round(self._subscription.options.close_timeout * NS_PER_S)
                    await self._clock.wait_until(self._clock.now_ns() + limit_ns)
                    self.cancel()

    async def fail(self, message: Message, error: Exception) -> None:
        """Requeue a message on which its handler has failed, or give it up at its last attempt."""
        if message.attempts < self.attempts_max:
            self.requeue(message, error)
        elif not message.is_answered:
            self._last_attempts.fail(message, error)
            await self.give_up(message, error)

    async def give_up(self, message: Message, error: Exception | None) -> None:
        """Finish a message after ``giving_up`` has returned; requeue it if that raises.

        Args:
            message: the message.
            error: what its handler raised last; None if it gave no answer in time.
        """
        if message.is_answered:
            return
        logger.warning("giving up on %r from %s", message, message.nsqd_address, exc_info=error, extra=_fields(message))
        if self._is_watched:
            self._begun[message] = anyio.CancelScope()  # it is not entered: no timeout cancels this
        try:
            result = self._give_up(message, self._given_up(message, error))
            if result is not None:
                if isawaitable(result):
                    await result
                else:
                    check_result(result, name="giving_up")
        except BaseException as raised:
            if (failure := failure_of(raised)) is None:
                self._subscription.requeue_now(message)
                raise
            logger.error("giving_up failed on %r", message, exc_info=failure, extra=_fields(message))
            self._subscription.requeue(message, None, backoff=True)
        else:
            self._core.given_up_count += 1
            self.finish(message)
        finally:
            self._begun.pop(message, None)

    def _given_up(self, message: Message, error: Exception | None) -> GivenUp:
        return GivenUp(
            topic=message.topic,
            channel=message.channel,
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
        self._subscription.requeue(message, None, backoff=True)

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
            if message.attempts < self.attempts_max and self._subscription.requeue(message, None, backoff=backoff):
                backoff = False
        for message in last:
            await self.fail(message, error)

    def check_time(self, duration_ns: int) -> None:
        """Warn once if a plain handler has kept the event loop for too long."""
        if duration_ns >= BLOCKED_MAX_NS and not self._has_warned_of_time:
            self._has_warned_of_time = True
            logger.warning(
                "the handler %s kept the event loop for %.1f s. No heartbeat is answered meanwhile, and nsqd may close "
                "the connection: make the handler async, or call run with in_threads=True",
                name_of(self._handler),
                duration_ns / NS_PER_S,
                extra=self._subscription.log_fields,
            )

    # ---- options -------------------------------------------------------------------------------------------------

    def cancel_timed_out(self) -> None:
        """Cancel the handlers of messages that have timed out, if ``cancel_at_timeout`` is set."""
        if self._options.cancel_at_timeout:
            for message, scope in self._begun.items():
                if message.deadline_ns == TIMED_OUT:
                    scope.cancel()

    def empty_keyed_queues(self) -> None:
        """Put messages that wait for a worker of their key back into the inbox."""
        if self._keyed_queues is not None:
            self._core.remove_queues(self._keyed_queues.queues)

    async def _keep_touching(self) -> None:
        """Touch the messages of running handlers in time, up to nsqd's maximum."""
        while True:
            now_ns = self._clock.now_ns()
            timeout_ns = min((session.msg_timeout_ns for session in self._core.sessions), default=TOUCH_NS)
            for message in list(self._begun):
                if message.deadline_ns - now_ns < message.session.msg_timeout_ns // 2 and not message.is_answered:
                    message.touch()
            await self._clock.wait_until(now_ns + min(timeout_ns, TOUCH_NS) // TOUCH_PARTS)


def _finish_each(done: list[Message]) -> None:
    """Finish messages before a handler is awaited, so that their FINs can be sent meanwhile."""
    for message in done:
        if message.session.finish(message) is FIRST:
            message.session.connection.wake()
    done.clear()


def _fields(message: Message) -> dict[str, object]:
    return {
        "nsqd_address": message.nsqd_address,
        "message_id": message.id.decode(errors="replace"),
        "attempts": message.attempts,
    }

"""Calls a user's handler of batches: as ``handling``, but with a list of messages.

    the handler …                        each message of the batch that it has not answered itself is …
    returns                              finished
    raises                               requeued with its delay; for backoff this is one failure
    is cancelled from outside            requeued at once

A message whose last attempt a handler has begun before is given up, and is not in the batch; nor are those that time
out meanwhile. If the handler raises, the messages at their last attempt are given up and the others requeued.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from nsqkit.consumer.batches import Batch
from nsqkit.consumer.cancellation import failure_of
from nsqkit.consumer.handler import check_result
from nsqkit.loop_thread import CarriedExit

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from nsqkit.consumer.batches import Batches
    from nsqkit.consumer.handling import Handling
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.subscription import Subscription


@attrs.define(eq=False)
class BatchHandling:
    """One call of ``run_batches``; ``single`` handles the messages that are given up or have failed."""

    _subscription: Subscription
    _batches: Batches
    _handler: Callable[[Batch[Message]], Any]
    _concurrency: int
    _single: Handling
    _carried: CarriedExit | None = attrs.field(init=False, default=None)

    async def run(self) -> None:
        """Return when the consumer is closed and the handlers that had begun have returned."""
        if self._concurrency == 1:
            await self._work()
            return
        async with anyio.create_task_group() as workers:
            for _ in range(self._concurrency):
                workers.start_soon(self._work_in, workers)
        if self._carried is not None:
            raise self._carried

    async def _work_in(self, workers: TaskGroup) -> None:
        try:
            await self._work()
        except (SystemExit, KeyboardInterrupt) as error:  # they would end asyncio's event loop
            self._carried = CarriedExit(error)
            workers.cancel_scope.cancel()

    async def _work(self) -> None:
        single, last_attempts = self._single, self._subscription.core.last_attempts
        async for batch in self._batches:
            last: list[Message] = []
            waiting: list[Message] = batch
            used_up = [each for each in batch if each.attempts >= single.attempts_max and each in last_attempts]
            try:
                for message in used_up:
                    await single.give_up(message, last_attempts.error(message))
                if used_up:  # these are answered, and others may have timed out meanwhile
                    waiting = [message for message in batch if not message.is_answered]
                last += [message for message in waiting if message.attempts >= single.attempts_max]
                for message in last:
                    last_attempts.begin(message)
                if waiting and await self._handle(waiting):
                    self._finish(waiting, last)
            except BaseException:
                for message in last:
                    last_attempts.forget(message)
                for message in batch:
                    self._subscription.requeue_now(message)
                raise
            await anyio.lowlevel.checkpoint()

    def _finish(self, begun: list[Message], last: list[Message]) -> None:
        in_time = [message for message in last if not message.is_answered]
        self._subscription.finish_all(begun)
        for message in in_time:
            self._subscription.core.last_attempts.forget(message)

    async def _handle(self, batch: list[Message]) -> bool:
        """Call the handler; return False if it has failed."""
        try:
            begun_ns = self._subscription.now_ns()
            # A copy, since the handler may change its list.
            result = self._handler(Batch(batch, self._subscription.finish_all))
            if result is not None and isawaitable(result):
                await result
            else:
                check_result(result)
                self._single.check_time(self._subscription.now_ns() - begun_ns)
        except BaseException as error:
            if (failure := failure_of(error)) is None:
                raise
            await self._single.fail_all(batch, failure)
            return False
        return True

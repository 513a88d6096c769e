"""What runs a user's handler of batches: as ``handling``, but for a whole list of messages at a time.

    the handler …                        each message of the batch that it has not answered itself is …
    returns                              finished
    raises                               requeued with its delay, which counts for backoff once
    is cancelled from outside            given back at once

The rule it guards: a message whose last attempt a handler has begun before is given up, and is not in the batch. Of a
batch that fails, the messages at their last attempt are given up and the others requeued.
"""

from __future__ import annotations

from inspect import isawaitable
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio

from nsqkit.consumer.handler import check_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.consumer.batches import Batches
    from nsqkit.consumer.dead_letter import LastAttempts
    from nsqkit.consumer.handling import Handling
    from nsqkit.consumer.message import Message


class BatchHandling:
    """One ``run_batches``.

    Args:
        batches: where batches come from.
        handler: called with each of them.
        concurrency: how many are handled at a time.
        single: deals with messages that are given up, and with those that failed.
        last_attempts: the messages of which a handler has begun the last attempt.
        finish_all: finishes the messages of a list that are not answered.
    """

    def __init__(
        self,
        batches: Batches,
        handler: Callable[[list[Message]], Any],
        concurrency: int,
        single: Handling,
        *,
        last_attempts: LastAttempts,
        finish_all: Callable[[list[Message]], object],
    ) -> None:
        self._batches = batches
        self._handler = handler
        self._concurrency = concurrency
        self._single = single
        self._attempts_max = single.attempts_max
        self._last_attempts = last_attempts
        self._finish_all = finish_all

    async def run(self) -> None:
        """Return when the consumer is closed and the handlers that had begun have returned."""
        if self._concurrency == 1:
            await self._work()
            return
        async with anyio.create_task_group() as workers:
            for _ in range(self._concurrency):
                workers.start_soon(self._work)

    async def _work(self) -> None:
        single, last_attempts = self._single, self._last_attempts
        async for batch in self._batches:
            last = [message for message in batch if message.attempts >= self._attempts_max]
            refused = [message for message in last if not last_attempts.begin(message)]
            begun = [message for message in batch if message not in refused] if refused else batch
            try:
                for message in refused:
                    await single.give_up(message, last_attempts.error(message))
                if begun and await self._handle(begun):
                    self._finish(begun, last)
            except BaseException:
                for message in last:
                    last_attempts.forget(message)
                for message in batch:
                    message.session.requeue_now([message])
                raise
            await anyio.lowlevel.checkpoint()

    def _finish(self, begun: list[Message], last: list[Message]) -> None:
        in_time = [message for message in last if not message.is_answered]
        self._finish_all(begun)
        for message in in_time:
            self._last_attempts.forget(message)

    async def _handle(self, batch: list[Message]) -> bool:
        """Call the handler; tell whether it has done its work."""
        try:
            began_at = monotonic()
            result = self._handler(batch)
            if result is not None and isawaitable(result):
                await result
            else:
                check_result(result)
                self._single.check_time(monotonic() - began_at)
        except Exception as error:
            await self._single.fail_all(batch, error)
            return False
        return True

"""What runs a user's handler of batches: as ``handling``, but for a whole list of messages at a time.

    the handler …                        each message of the batch that it has not answered itself is …
    returns                              finished
    raises                               requeued with its delay, which counts for backoff once
    is cancelled from outside            given back at once

The rule it guards: a message that was delivered too often is given up by itself, and is not in the batch.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import anyio

from nsqkit.consumer.handling import Handling

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.consumer.batches import Batches
    from nsqkit.consumer.message import Message


class BatchHandling:
    """One ``run_batches``.

    Args:
        batches: where batches come from.
        handler: called with each of them.
        concurrency: how many are handled at a time.
        single: deals with messages that were delivered too often, and with those that failed.
    """

    def __init__(
        self,
        batches: Batches,
        handler: Callable[[list[Message]], Any],
        concurrency: int,
        single: Handling,
    ) -> None:
        self._batches = batches
        self._handler = handler
        self._concurrency = concurrency
        self._single = single
        self._attempts_max = single.attempts_max

    async def run(self) -> None:
        """Return when the consumer is closed and the handlers that had begun have returned."""
        if self._concurrency == 1:
            await self._work()
            return
        async with anyio.create_task_group() as workers:
            for _ in range(self._concurrency):
                workers.start_soon(self._work)

    async def _work(self) -> None:
        async for batch in self._batches:
            begun = [message for message in batch if message.attempts <= self._attempts_max]
            try:
                if len(begun) < len(batch):
                    for message in batch:
                        if message.attempts > self._attempts_max:
                            await self._single.give_up(message)
                if begun and await self._handle(begun):
                    batch.finish()
            except BaseException:
                for message in batch:
                    message.session.requeue(message, 0, backoff=False)
                raise
            await anyio.lowlevel.checkpoint()

    async def _handle(self, batch: list[Message]) -> bool:
        """Call the handler; tell whether it has done its work."""
        try:
            result = self._handler(batch)
            if result is not None and isawaitable(result):
                await result
        except Exception as error:
            self._single.fail_all(batch, error)
            return False
        return True

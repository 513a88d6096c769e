"""Messages in batches.

The rule it guards: a batch waits for more only while more can come. It is handed over when it is full, when its time
is over, when the consumer is starved (RDY is used up, so nsqd sends nothing until something is answered), and when
the consumer stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import anyio

from nsqkit.errors import OptionError
from nsqkit.options.checks import take_seconds
from nsqkit.options.durations import Seconds

if TYPE_CHECKING:
    from nsqkit.consumer.consumer import Consumer
    from nsqkit.consumer.message import Message

M = TypeVar("M")


class Batch(list[M]):
    """Messages that came together: a list of them.

    Args:
        messages: the messages.
        finish_all: finishes a list of them, those that are not answered.
    """

    __slots__ = ("_finish_all",)

    def __init__(self, messages: Iterable[M], finish_all: Callable[[list[M]], object]) -> None:
        super().__init__(messages)
        self._finish_all = finish_all

    def finish(self) -> None:
        """Say that all of them are done, in one go, which costs less than saying it of each; nsqd forgets them.

        Those that were answered before are left alone, as are those that have timed out and those whose connection was
        lost.
        """
        self._finish_all(self)


class Batches:
    """The iterator of ``Consumer.batches``.

    Args:
        consumer: whose messages they are.
        max_messages: how many a batch has at most; None is no limit.
        max_wait: seconds for which a batch that has begun waits for ``max_messages``.
        raises: whether the error that has ended the consumer, if there is one, is raised at the end.

    Raises:
        OptionError: a limit below 1, or a wait below 0 or without a limit.
    """

    def __init__(
        self, consumer: Consumer, max_messages: int | None, max_wait: Seconds, *, raises: bool = True
    ) -> None:
        is_whole = isinstance(max_messages, int) and not isinstance(max_messages, bool)
        if max_messages is not None and (not is_whole or max_messages < 1):
            raise OptionError(
                f"max_messages is {max_messages!r}; allowed is None, or a whole number of at least 1"
            )
        max_wait = take_seconds("max_wait", max_wait)
        if max_wait and max_messages is None:
            raise OptionError(f"max_wait is {max_wait!r}; allowed is 0 where max_messages is None")
        self._consumer = consumer
        self._inbox = consumer._core.inbox
        self._finish_all = consumer._core.finish_all
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._raises = raises

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch[Message]:
        while not self._inbox:
            if not await self._consumer._wait_for_messages():
                if self._raises:
                    self._consumer._connections.check_failure()
                raise StopAsyncIteration
        if self._max_wait:
            await self._gather()
            if not self._inbox:  # given back, or taken by somebody else meanwhile
                return await self.__anext__()
        return self._take()

    async def _gather(self) -> None:
        """Wait until the batch is full, or there is no use in waiting."""
        assert self._max_messages is not None
        with anyio.move_on_after(self._max_wait):
            while len(self._inbox) < self._max_messages and not self._consumer.is_starved:
                if not await self._consumer._wait_for_messages():
                    return

    def _take(self) -> Batch[Message]:
        inbox, limit = self._inbox, self._max_messages
        if limit is None or len(inbox) <= limit:
            batch = Batch(inbox, self._finish_all)
            inbox.clear()
            return batch
        return Batch((inbox.popleft() for _ in range(limit)), self._finish_all)
